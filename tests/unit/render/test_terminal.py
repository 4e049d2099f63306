from __future__ import annotations

import re
import unicodedata
from dataclasses import replace

import pytest
from rich.console import Console

from hangdoc.render.terminal import lines, show
from hangdoc.verdict import Culprit, Verdict
from tests.support.verdicts import ALL, MakeConsole, dead_link, healthy, hostile, nameless, uneven, unknown, written

UNEVEN_100 = """\
STALLED 41 s   job none  3 ranks on 1 host

  uneven-batches            collective_wait           high confidence
  Rank 2 left the training loop while ranks 0-1 still have batches.

  culprit  rank 2     barrier     finish (train.py:31)             pid 4278 on node-a
  waiting  ranks 0-1  all_reduce  train (train.py:24) in backward
  why      n = 20 on ranks 0-1, 15 on rank 2      local variable, train (train.py:20)
           step = 15 everywhere
           sockets idle for 41 s, nothing unacknowledged, no retransmission: not the network
  do       1. Give every rank the same number of batches: DistributedSampler(drop_last=True), or
              pad.
           2. Or wrap the loop in DDP's join() context.
  more     hangdoc runbook uneven-batches
"""


def plain(verdict: Verdict, console: Console) -> str:
    return "".join(line.plain + "\n" for line in lines(verdict, console))


def test_look(console: MakeConsole) -> None:
    assert plain(uneven(), console(100)) == UNEVEN_100


def test_healthy_is_one_line(console: MakeConsole) -> None:
    assert plain(healthy(), console()) == "HEALTHY  job none  3 ranks on 1 host  step every 0.4 s\n"


@pytest.mark.parametrize("width", [24, 40, 80, 120])
@pytest.mark.parametrize("verdict", ALL, ids=lambda v: v.status)
def test_fits_any_width_without_losing_a_word(console: MakeConsole, width: int, verdict: Verdict) -> None:
    shown = lines(verdict, console(width))
    assert max(line.cell_len for line in shown) <= width
    assert not [line.plain for line in shown if line.plain != line.plain.rstrip()]
    wide = "".join(line.plain for line in lines(verdict, console(4000)))
    assert re.sub(r"\s", "", "".join(line.plain for line in shown)) == re.sub(r"\s", "", wide)


def test_order_is_verdict_evidence_remedy(console: MakeConsole) -> None:
    text = plain(uneven(), console(40))
    places = [text.index(word) for word in ("STALLED", "uneven-batches", "culprit", "waiting", "why", "do ", "more")]
    assert places == sorted(places)


def test_ranks_and_hosts_are_folded(console: MakeConsole) -> None:
    text = plain(dead_link(), console())
    assert "64 of 72 ranks on 8 hosts" in text
    assert text.count("all_reduce") == 1
    assert "ranks 0-63" in text


def test_culprits_on_many_hosts_are_one_row(console: MakeConsole) -> None:
    verdict = dead_link()
    culprits = tuple(Culprit(line.rank, line.pid, line.host) for line in verdict.job.ranks[:32])
    text = plain(replace(verdict, findings=(replace(verdict.findings[0], culprits=culprits),)), console(140))
    assert re.search(r"culprit +ranks 0-31 .* on node\[?0", text)
    assert "waiting  ranks 32-63" in text


def test_other_findings_are_shorter_and_ties_are_said(console: MakeConsole) -> None:
    text = plain(dead_link(), console())
    assert text.index("equally likely") < text.index("firewall")
    assert text.index("also possible") < text.index("stopped-process")
    assert "do " not in text[text.index("equally likely") :]


def test_culprit_that_is_no_rank_has_its_pid_once(console: MakeConsole) -> None:
    finding = replace(uneven().findings[0], culprits=(Culprit(None, 30478, "node-a"),))
    text = plain(replace(uneven(), findings=(finding,)), console())
    assert re.search(r"culprit +pid 30478 +on node-a\n", text)


def test_links_name_both_ends(console: MakeConsole) -> None:
    text = plain(dead_link(), console())
    assert "rank 3 (10.0.0.1:4210) -> rank 4 (10.0.0.2:5512)  on eth0" in text
    assert "[fe80::1]:1 -> 10.0.0.3:9" in text


def test_unseen_is_said_once_for_all_ranks(console: MakeConsole) -> None:
    text = plain(dead_link(), console())
    assert "could not see: stacks of ranks 3-4: ptrace refused; run as root or add CAP_SYS_PTRACE" in text
    assert "could not see: nics of node04: " in text


def test_unknown_shows_what_the_ranks_do(console: MakeConsole) -> None:
    text = plain(unknown(), console())
    assert "UNKNOWN  job none" in text
    assert "unknown  pids 10,11" in text


def test_lowered_confidence_says_why(console: MakeConsole) -> None:
    verdict = uneven()
    finding = replace(verdict.findings[0], confidence="medium", reasons=("stacks of rank 1 were refused",))
    assert "confidence: stacks of rank 1 were refused" in plain(replace(verdict, findings=(finding,)), console())


@pytest.mark.parametrize("colour", [True, False])
def test_hostile_text_is_shown_literally(console: MakeConsole, colour: bool) -> None:
    made = console(80, colour)
    show([hostile()], made)
    text = written(made)
    without_colour = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert not {c for c in without_colour if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs")}
    assert "[bold red]x[/]" in without_colour
    assert ":skull:" in without_colour
    assert ("\x1b[" in text) is colour


def test_differences_come_first_under_the_note(console: MakeConsole) -> None:
    verdict = replace(
        uneven(), findings=(), note="no playbook matches", differences=("--lr = 1 on rank 0, 2 on rank 1", "A = 3 \x1b")
    )
    shown = plain(verdict, console()).splitlines()
    assert shown[1:5] == ["  no playbook matches", "", "  differs  --lr = 1 on rank 0, 2 on rank 1", "           A = 3"]
    assert shown[5] == ""


def test_what_is_known_comes_before_what_it_may_be(console: MakeConsole) -> None:
    text = plain(nameless(), console(100))
    assert (
        """
  known    rank 2 waited in ALLREDUCE 19 for 10 min
           nccl 2.21.5

  likely   collective_wait: a rank is missing from the collective
           for: peers waited until a timeout
           decide: `grep -hE 'Watchdog caught' LOGS`

  or       network: the data did not cross
           against: no line reports an error of a link
           decide: `dmesg -T`
"""
        in text
    )
