"""Which host a line of a pasted text comes from."""

from __future__ import annotations

import pytest

from hangdoc.postmortem.readers._host_context import HostContext, host_in_front

# Text above a line -> the host of the line.
HOSTS = {
    "root@gn12:~# dmesg | tail": "gn12",
    "### gn12": "gn12",
    "On gn12:": "gn12",
    "gn12 (the same command):": "gn12",
    "gn12 (the same command)": None,
    "this is what dmesg has on gn12:": "gn12",
    "---------------\ngn12\n---------------": "gn12",  # clush, dshbak
    "---------------\nSummary\n---------------": None,
    "dmesg, gn12:": "gn12",
    "dmesg (gx-b):": "gx-b",
    "### gx-b": None,  # any word with a dash
    "host gx-b:": "gx-b",
    "gn12\n$ dmesg": "gn12",  # above a prompt that names none
    "gn12\nok\n$ dmesg": None,
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
