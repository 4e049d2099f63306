"""Verdicts for the renderers, built by hand."""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console

from hangdoc.evidence import Unseen
from hangdoc.verdict import Considered, Culprit, Family, Finding, Job, Link, Proof, RankLine, Verdict

MakeConsole = Callable[..., Console]


def written(console: Console) -> str:
    """All that went to a console of the fixture."""
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def uneven() -> Verdict:
    train = "train (train.py:24) in backward"
    return Verdict(
        "stalled",
        41.2,
        Job(
            "none",
            3,
            "torchrun",
            ("node-a",),
            (
                RankLine(0, 4276, "node-a", "collective", "all_reduce", train),
                RankLine(1, 4277, "node-a", "collective", "all_reduce", train),
                RankLine(2, 4278, "node-a", "collective", "barrier", "finish (train.py:31)"),
            ),
        ),
        (
            Finding(
                "uneven-batches",
                "collective_wait",
                "high",
                "Ranks ran different numbers of batches",
                "Rank 2 left the training loop while ranks 0-1 still have batches.",
                (Culprit(2, 4278, "node-a", "finish (train.py:31)"),),
                (),
                (
                    Proof(
                        "stacks",
                        (0, 1, 2),
                        "n = 20 on ranks 0-1, 15 on rank 2      local variable, train (train.py:20)",
                    ),
                    Proof("stacks", (0, 1, 2), "step = 15 everywhere"),
                    Proof(
                        "sockets",
                        (0, 1, 2),
                        "sockets idle for 41 s, nothing unacknowledged, no retransmission: not the network",
                    ),
                ),
                (
                    "Give every rank the same number of batches: DistributedSampler(drop_last=True), or pad.",
                    "Or wrap the loop in DDP's join() context.",
                ),
            ),
        ),
    )


def dead_link() -> Verdict:
    hosts = tuple(f"node{i:02d}" for i in range(1, 9))
    ranks = tuple(
        RankLine(i, 100 + i, hosts[i % 8], "collective", "all_reduce", "step (model.py:7)") for i in range(64)
    )
    first = Finding(
        "dead-link",
        "network",
        "medium",
        "A link is dead",
        "Bytes from rank 3 to rank 4 have been unacknowledged for 1 min 12 s.",
        (),
        (Link(3, 4, "10.0.0.1:4210", "10.0.0.2:5512", "eth0"), Link(None, None, "[fe80::1]:1", "10.0.0.3:9")),
        (Proof("sockets", (3,), "65536 bytes unacknowledged, 9 retransmissions, backoff 7"),),
        ("Look at eth0 on node04: ip -s link show eth0.",),
    )
    tie = Finding(
        "firewall",
        "network",
        "medium",
        "A firewall drops the traffic",
        "A firewall between node04 and node05 may drop established connections.",
        (Culprit(4, 104, "node05"),),
    )
    also = Finding(
        "stopped-process",
        "host_fault",
        "low",
        "A rank is stopped",
        "Rank 9 may be stopped.",
        (Culprit(9, 109, "node02"),),
    )
    unseen = (
        Unseen("stacks", "ptrace refused; run as root or add CAP_SYS_PTRACE", 3, 103, "node04"),
        Unseen("stacks", "ptrace refused; run as root or add CAP_SYS_PTRACE", 4, 104, "node05"),
        Unseen("nics", "no permission to enter its network namespace; run as root", None, None, "node04"),
    )
    return Verdict("stalled", 72.0, Job("7f3a", 72, "torchrun", hosts, ranks), (first, tie, also), unseen)


def healthy() -> Verdict:
    lines = tuple(RankLine(i, 10 + i, "node-a", "compute", None, "train (train.py:9)") for i in range(3))
    return Verdict("healthy", None, Job("none", 3, "torchrun", ("node-a",), lines), note="step every 0.4 s")


def unknown() -> Verdict:
    lines = tuple(RankLine(None, 10 + i, "node-a", "unknown") for i in range(2))
    why = "ptrace refused by yama; run as root, or: sysctl kernel.yama.ptrace_scope=0"
    unseen = tuple(Unseen("stacks", why, None, 10 + i, "node-a") for i in range(2))
    return Verdict(
        "unknown", None, Job("none", None, None, ("node-a",), lines), (), unseen, "The stacks of no rank could be seen."
    )


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[31m[bold red]x[/] <b>&`|*_\r\n\u202egnp.exe\x9b31m\ud800\x00 :skull: " + "y" * 90


def hostile(text: str = HOSTILE) -> Verdict:
    """Every text in it is this one."""
    h = text
    finding = Finding(
        "user-playbook",
        h,
        h,
        h,
        h,
        (Culprit(0, 1, h, h),),
        (Link(0, 1, h, h, h),),
        (Proof(h, (0,), h),),
        (h,),
    )
    job = Job(h, 1, h, (h,), (RankLine(0, 1, h, h, h, h), RankLine(1, 2, h, h, h)))
    unseen = (Unseen(h, h, 0, 1, h), Unseen(h, h))
    family = Family(h, h, (h,), (h,), h)
    return Verdict("stalled", 1.0, job, (finding, finding), unseen, h, (Considered(h, "no", h),), (h,), (h,), (family,))


def nameless() -> Verdict:
    """No playbook applies: what is known, and what it may be."""
    lines = (RankLine(2, None, "unknown host", "unknown"),)
    families = (
        Family(
            "collective_wait",
            "a rank is missing from the collective",
            ("peers waited until a timeout",),
            (),
            "`grep -hE 'Watchdog caught' LOGS`",
        ),
        Family("network", "the data did not cross", (), ("no line reports an error of a link",), "`dmesg -T`"),
    )
    return Verdict(
        "stalled",
        None,
        Job("none", None, None, ("unknown host",), lines),
        note="no playbook matches, so hangdoc names no cause",
        understood=("rank 2 waited in ALLREDUCE 19 for 10 min", "nccl 2.21.5"),
        families=families,
    )


ALL = (uneven(), dead_link(), healthy(), unknown(), hostile(), nameless())
