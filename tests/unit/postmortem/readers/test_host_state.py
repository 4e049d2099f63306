"""Processes seen from outside (strace, /proc), and tables of the load of hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoc.diagnose import load_judge
from hangdoc.errors import HangdocError
from hangdoc.evidence import End, Process
from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.postmortem.report import report
from tests.support.samples import SAMPLES, pieces

JUDGE = load_judge((), lambda text: None)
QUIET = {
    "calls in a source file": 'def read(self, n):\n    return os.read(self.fd, n)\nopen("/mnt/x", "r")\n',
    "calls that return": """\
strace: Process 5120 attached
read(22</data/a.tar>, ""..., 65536) = 65536 <0.000041>
fsync(9</data/log>)                     = 0 <0.021004>
epoll_wait(8, ^Cstrace: Process 5120 detached
""",
    "idle threads of the kernel and of a FUSE daemon": """\
[<0>] xfsaild+0x9e/0x2c0 [xfs]
[<0>] kthread+0xd6/0x100

[<0>] fuse_dev_do_read+0x2d1/0x8a0 [fuse]
[<0>] do_syscall_64+0x59/0xc0
""",
    "a disk that was slow since the boot only": """\
Linux 6.1.0 (w3) 	06/11/2026 	_x86_64_	(32 CPU)

Device            r/s     rkB/s r_await     w/s     wkB/s w_await  aqu-sz  %util
sda             55.30   5120.81  904.50    0.40      8.10   18.11   11.31  99.70

Device            r/s     rkB/s r_await     w/s     wkB/s w_await  aqu-sz  %util
sda              0.30     12.81    4.50    0.40      8.10    1.11    0.31   0.70
""",
    "a rank that uses every core": """\
Linux 6.1.0 (w3) 	06/11/2026 	_x86_64_	(32 CPU)

11:00:01      UID       PID    %usr %system  %guest   %wait    %CPU   CPU  Command
11:00:02     1002     40011 3150.00   20.00    0.00    0.00 3170.00     4  python3
""",
    "a short burst from swap": """\
 r  b   swpd   free   buff  cache   si   so    bi    bo   in   cs us sy id wa st
 3  0 331192 512004   1208 903120    2    3   421   380  110  210 11  2 87  0  0
 2  1 331192 498812   1100 900044 9112    0  9800  1100 9021 1522  14  3 80  3  0
 2  0 331192 498812   1100 900044    0    0     0  1100 9021 1522  14  3 83  0  0
 2  0 331192 498812   1100 900044    0    0     0  1100 9021 1522  14  3 83  0  0
""",
}


def test_processes_of_strace() -> None:
    standing, slow = _events("process_tracing", "strace")
    assert (standing[0], standing[1].kind, standing[1].fields) == (
        (None, "gx6", 8812),
        "standing_call",
        {"call": "openat", "on": "file", "path": "/mnt/nas/b.tar", "only": "yes"},
    )
    assert (slow[1].kind, slow[1].fields["seconds"], slow[1].fields["path"]) == (
        "slow_call",
        "2.500112",
        "/mnt/nas/a.tar",
    )


def test_files_of_proc() -> None:
    found = {event.kind: (process[2], event.fields) for process, event in _events("process_tracing", "proc")}
    assert found["kernel_wait"] == (7003, {"wchan": "rpc_wait_bit_killable", "storage": "yes"})
    assert found["defunct"] == (7005, {})
    assert found["standing_call"] == (7006, {"call": "pread64", "on": "file", "path": "/scratch/c.bin", "only": "yes"})
    calls = [(process[2], event.fields["on"]) for process, event in _events("process_tracing", "proc")[:1]]
    assert calls == [(7002, "lock")]
    records = [piece.record for piece in pieces("process_tracing", SAMPLES / "process_tracing/proc.txt")]
    (stopped,) = (record for record in records if isinstance(record, Process))
    assert (stopped.pid, stopped.state, stopped.tracer_pid) == (7004, "t", 6990)
    assert any(isinstance(record, End) for record in records)


def test_tasks_of_the_kernel_are_no_ranks() -> None:
    ((process, event),) = _events("process_tracing", "sysrq")
    assert process == (None, "qb-22", 71920)
    assert event.fields == {"wchan": "rpc_wait_bit_killable", "storage": "yes"}


def test_tables_of_hosts() -> None:
    disks = [event.fields for _, event in _events("host_load", "sysstat") if event.kind == "disk_load"]
    assert [one["device"] for one in disks] == ["nvme0n1", "sdc", "nvme0n1", "sdc"]
    assert disks[1] == {"device": "sdc", "util": "61.7", "since_boot": "yes", "await_ms": "204.5"}
    assert disks[3] == {"device": "sdc", "util": "100.0", "await_ms": "902.31"}
    hosts = {process[1] for process, _ in _events("host_load", "memory")}
    assert hosts == {"mu2", "mu3", "mu4"}
    mounts = {event.fields.get("op"): event.fields for _, event in _events("host_load", "mounts")}
    assert mounts["read"]["rtt_ms"] == "3870.412"
    assert mounts["read"]["resent_percent"] == "12.4"


@pytest.mark.parametrize(
    ("sample", "playbook", "hosts"),
    [
        ("process_tracing/strace", "blocked-on-storage", ["gx6"]),
        ("process_tracing/sysrq", "blocked-on-storage", ["qb-22"]),
        ("host_load/sysstat", "slow-storage", ["lab-gpu3"]),
        ("host_load/memory", "host-overloaded", ["mu3", "mu4", "mu2"]),
        ("host_load/mounts", "slow-storage", []),
    ],
)
def test_verdict(sample: str, playbook: str, hosts: list[str]) -> None:
    found = report([SAMPLES / f"{sample}.txt"], judge=JUDGE).verdicts
    findings = {finding.playbook: finding for verdict in found for finding in verdict.findings}
    assert playbook in findings
    assert findings[playbook].confidence == "low"
    assert [one.host for one in findings[playbook].culprits] == hosts


@pytest.mark.parametrize("name", QUIET)
def test_nothing_is_claimed(name: str, tmp_path: Path) -> None:
    file = tmp_path / "paste.txt"
    file.write_text(QUIET[name])
    try:
        verdicts = report([file], judge=JUDGE).verdicts
    except HangdocError:
        return
    assert [finding.playbook for verdict in verdicts for finding in verdict.findings] == []


def test_rows_of_netstat() -> None:
    (piece,) = pieces("ss", SAMPLES / "ss/netstat.txt")
    first, second = piece.record.connections
    assert (piece.process.pid, first.send_queue, first.retransmits, first.timer) == (30118, 118336, 10, "on")
    assert (second.remote, second.timer) == ("10.80.1.5", "off")


def _events(reader: str, sample: str) -> list[tuple[tuple[int | None, str | None, int | None], LogEvent]]:
    found: list[tuple[tuple[int | None, str | None, int | None], LogEvent]] = []
    for piece in pieces(reader, SAMPLES / reader / f"{sample}.txt"):
        process = piece.process.rank, piece.process.host, piece.process.pid
        found += [(process, event) for event in piece.record.said] if isinstance(piece.record, Logs) else []
    return found
