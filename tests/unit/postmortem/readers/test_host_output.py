"""Output of a command on many hosts: the host in front of each line, whatever the tool prints."""

from __future__ import annotations

import pytest

from hangdoc.postmortem.readers._cleaning import TextLine
from hangdoc.postmortem.readers._host_output import MAX_ADDED, with_hosts
from hangdoc.postmortem.readers._text_source import cleaned

RULER = "---------------"


def lines_of(text: str) -> list[str]:
    return [line.text for line in with_hosts([TextLine(at, one) for at, one in enumerate(text.split("\n"), 1)])]


@pytest.mark.parametrize(
    "text",
    [
        "n1 | CHANGED | rc=0 >>\n9000\nn2 | CHANGED | rc=0 >>\n1500",
        "[1] 10:00:02 [SUCCESS] n1\n9000\n[2] 10:00:02 [SUCCESS] n2\n1500",
        f"{RULER}\nn1\n{RULER}\n9000\n{RULER}\nn2 (1)\n{RULER}\n1500",
        '$ for h in n1 n2; do echo -n "$h "; ssh $h cat mtu; done\nn1 9000\nn2 1500',
        "$ for i in {1..2}; do ssh n$i 'echo $(hostname) $(cat mtu)'; done\nn1 9000\nn2 1500",
        "$ pdsh -w n[1-2] cat mtu | sort\nn1: 9000\nn2: 1500",
        "$ for h in n1 n2; do ssh $h cat mtu; done\n9000\n1500",
    ],
)
def test_each_line_has_its_host(text: str) -> None:
    assert lines_of(text)[-1] == "n2 | 1500"
    assert "n1 | 9000" in lines_of(text)


def test_hosts_of_one_group_have_the_same_lines() -> None:
    text = f"{RULER}\nnd[01-02,05] (3)\n{RULER}\nSpeed: 25000Mb/s\n{RULER}\nnd03\n{RULER}\nSpeed: 1000Mb/s"
    assert [one for one in lines_of(text) if "Speed" in one] == [
        "nd01 | Speed: 25000Mb/s", "nd02 | Speed: 25000Mb/s", "nd05 | Speed: 25000Mb/s", "nd03 | Speed: 1000Mb/s",
    ]  # fmt: skip


def test_each_host_of_a_loop_prints_lines_of_the_same_forms() -> None:
    text = (
        "`for h in n1 n2; do ssh $h ibstat mlx5_3 | egrep 'State|Rate'; done`\n\n"
        "\tState: Active\n\tRate: 200\n\tState: Down\n\tRate: 10"
    )
    assert lines_of(text)[2:] == ["n1 | State: Active", "n1 | Rate: 200", "n2 | State: Down", "n2 | Rate: 10"]


@pytest.mark.parametrize(
    "text",
    [
        "$ for h in n1 n2; do ssh $h ibstat; done\nState: Active\nRate: 200\nRate: 10\nState: Down",  # in another order
        "$ for h in n1 n2; do ssh $h ibstat; done\nState: Active\nState: Down\nState: Active\nState: Down",
        "$ for h in n1 n2; do ssh $h ibstat; done\nState: Active\nRate: 200\nState: Down",  # one has lost a line
        "n1 | CHANGED | rc=0 >>\n9000",  # one host only
        "for i in 1 2 3; do echo $i; done\n1 first\n2 second",  # a loop over no hosts
        "\n".join(f"n{at} | CHANGED | rc=0 >>" + "\nline" * 40 for at in (1, 2)),  # a report of each host
        "n1 | CHANGED | rc=0 >>\nRANK=0\nn2 | CHANGED | rc=0 >>\nRANK=1",  # its readers know the headings
    ],
)
def test_other_text_is_left_as_it_is(text: str) -> None:
    assert lines_of(text) == text.split("\n")


def test_a_large_group_adds_few_lines() -> None:
    group = f"{RULER}\nn[1-64]\n{RULER}\n" + "\n".join(["value"] * 8) + "\n"
    text = group * 200 + f"{RULER}\nm1\n{RULER}\nother"
    assert len(lines_of(text)) <= MAX_ADDED + len(text.split("\n"))
    assert cleaned(f"{RULER}\nn[1-99999999]\n{RULER}\nvalue")[-1].text == "value"
