"""Which host a line of a pasted text comes from, and which process a dump belongs to."""

from __future__ import annotations

import pytest

from hangdoc.evidence.pieces import ProcessRef
from hangdoc.postmortem.readers._owner_hints import (
    MAX_ABOVE,
    MAX_COMPANIONS,
    HostContext,
    OwnerHints,
    examined_rank,
    host_in_front,
    listed_numbers,
)

# Text above a line -> the host of the line.
HOSTS = {
    "root@gn12:~# dmesg | tail": "gn12",
    "### gn12": "gn12",
    "On gn12:": "gn12",
    "this is what dmesg has on gn12:": "gn12",
    "---------------\ngn12\n---------------": "gn12",  # clush, dshbak
    "---------------\nSummary\n---------------": None,
    "### step12": None,
    "gn12": None,  # a word alone
    "trained on A100 for 3 days": None,
    "root@gn12:~# pdsh -w gn[1-4] dmesg": None,  # the lines come from other hosts
}
# A line, the message in it -> the host that a label in front of it names.
FRONTS = [
    ("gn12: NVRM: Xid (PCI:0000:1b:00): 79", "NVRM", "gn12"),
    ("[Tue Mar  3 04:11:09 2026] gn12: NVRM: Xid", "NVRM", "gn12"),
    ("(gn12) NVRM: Xid", "NVRM", "gn12"),
    ("dmesg on gn12 says NVRM: Xid", "NVRM", "gn12"),
    ("rank3: NVRM: Xid", "NVRM", None),
    ("warning: NVRM: Xid", "NVRM", None),
]
# A line above a dump -> its process.
PROCESSES = {
    "rank 3 (pid 4117) on gn12:": ProcessRef(3, "gn12", 4117),
    "### rank 3": ProcessRef(3),
    "==> gn12 <==": ProcessRef(host="gn12"),
    "we think rank 3 and its loader are fine, as every rank before it was": ProcessRef(),
    "user@gn12:~$ py-spy dump --pid 4117": ProcessRef(None, "gn12", 4117),
    "$ py-spy dump -p 4117  # rank 3": ProcessRef(3),
    "user@gn12:~$ gdb -p 4117 -batch -ex bt # this is rank 3 of 8": ProcessRef(3, "gn12"),
    "$ kill -USR1 4117 # ranks 0-7 all look like this": ProcessRef(),
}


@pytest.mark.parametrize("text", HOSTS)
def test_host_of_the_lines_below(text: str) -> None:
    content = f"{text}\nNVRM: Xid (PCI:0000:1b:00): 79\n"
    assert HostContext(content.encode()).at(content.count("\n")) == HOSTS[text]


def test_the_last_host_above_a_line_counts() -> None:
    hosts = HostContext(b"first line\n### gn12\nNVRM: Xid\n### gn13\nNVRM: Xid\n")
    assert [hosts.at(line) for line in range(1, 6)] == [None, "gn12", "gn12", "gn13", "gn13"]


@pytest.mark.parametrize(("line", "message", "host"), FRONTS)
def test_host_in_front(line: str, message: str, host: str | None) -> None:
    assert host_in_front(line, line.index(message)) == host


@pytest.mark.parametrize("text", PROCESSES)
def test_process_of_a_dump(text: str) -> None:
    hints = OwnerHints()
    hints.observe(text)
    assert hints.take() == PROCESSES[text]


@pytest.mark.parametrize(("lines", "rank"), [(2, 6), (MAX_ABOVE + 1, None)])
def test_a_heading_far_above_a_debugger_is_that_of_another_dump(lines: int, rank: int | None) -> None:
    hints = OwnerHints()
    for text in ("RANK 6:", *["    get (multiprocessing/queues.py:113)"] * lines, "$ sudo gdb -p 22764 -batch -ex bt"):
        hints.observe(text)
    assert hints.take() == ProcessRef(rank)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0, 2-4 and 7", (0, 2, 3, 4, 7)),
        ("1 to 3", (1, 2, 3)),
        ("4-2", ()),
        (f"0-{MAX_COMPANIONS}", ()),
        (f"0-{MAX_COMPANIONS - 1}, 9000", ()),
    ],
)
def test_listed_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert listed_numbers(text, MAX_COMPANIONS) == numbers


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("0 and 1 wait. py-spy on rank 2 says `active+gil` every time. gdb on it:", 2),
        ("only rank 5 never got there, so I attached gdb to it:", 5),
        ("`gdb -p 77 -batch` for rank 1:", 1),
        ("py-spy on rank 3 fails, so here is rank 0 from gdb:", None),
        ("ranks 0-3 in gdb:", None),
        ("rank 2 is late, no idea why", None),
    ],
)
def test_rank_on_which_a_debugger_was_used(text: str, rank: int | None) -> None:
    assert examined_rank(text) == rank
