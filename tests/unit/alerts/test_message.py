from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from hangdoc.alerts import message
from hangdoc.alerts.spool import MAX_FILE
from hangdoc.incident.record import Outcome
from hangdoc.recording.verdict_json import to_json
from tests.support import verdicts
from tests.support.incident_records import ended, known, suspected

AT = "2024-11-24T03:16:00.000+00:00"


def made(**given: Any) -> message.Alert:
    return message.alert(suspected(**given), "fired", 1, AT)


def test_people_get_the_first_screen() -> None:
    alert = message.alert(known(suspected(recurrence="third stall on node-a in 6 days")), "updated", 2, AT)
    assert alert.title == "STALLED, update: job train.py (7f3a) on node-a: uneven-batches"
    assert (
        message.body(alert)
        == f"""\
third stall on node-a in 6 days

STALLED 41 s   job none  3 ranks on 1 host

  uneven-batches            collective_wait           high confidence
  Rank 2 left the training loop while ranks 0-1 still have batches.

  culprit  rank 2     barrier     finish (train.py:31)  pid 4278 on node-a
  waiting  ranks 0-1  all_reduce  train (train.py:24) in backward
  why      n = 20 on ranks 0-1, 15 on rank 2
           local variable, train (train.py:20)
           step = 15 everywhere
           sockets idle for 41 s, nothing unacknowledged, no retransmission: not
           the network
  do       1. Give every rank the same number of batches:
              DistributedSampler(drop_last=True), or pad.
           2. Or wrap the loop in DDP's join() context.
  more     hangdoc runbook uneven-batches

more: hangdoc incidents show {alert.incident}"""
    )


def test_without_a_cause_it_says_so() -> None:
    alert = made(verdicts=())
    assert (alert.playbook, alert.cls, alert.summary) == ("unknown", "unknown", message.NO_CAUSE)
    assert alert.title == "STALLED: job train.py (7f3a) on node-a"


def test_the_end_starts_with_the_outcome() -> None:
    alert = message.alert(ended(known(suspected())), "resolved", 3, AT)
    assert alert.title == "RECOVERED: job train.py (7f3a) on node-a: uneven-batches"
    assert message.body(alert).startswith("The job went on after 2 min.\n\nSTALLED")
    killed = replace(suspected(), ended=AT, outcome=Outcome("killed", "Somebody killed the job.", AT))
    assert message.alert(killed, "resolved", 2, AT).title == "OVER: job train.py (7f3a) on node-a"


@pytest.mark.parametrize(
    "text", [verdicts.HOSTILE, "\ud800" * 10_000, "🔥" * 100_000], ids=["escapes", "surrogates", "long"]
)
def test_hostile_texts_are_bounded_and_plain(text: str) -> None:
    verdict = to_json(verdicts.hostile(text))
    verdict["status"] = text
    verdict["findings"] *= 100
    verdict["findings"][0]["culprits"] *= 1_000
    given = dict.fromkeys(("id", "job", "label", "user", "slurm_job", "onset", "status", "recurrence"), text)
    alert = made(**given, hosts=(text,) * 5_000, verdicts=(verdict,))
    content = msgspec.json.encode(alert)
    assert len(content) < MAX_FILE
    assert len(json.dumps(message.data(alert))) < 4 * MAX_FILE
    assert not {char for char in message.body(alert) + alert.title if not char.isprintable()} - {"\n"}
    assert msgspec.json.decode(content, type=message.Alert) == alert


@pytest.mark.parametrize(
    "verdict", [{}, {"schema": "hangdoc.verdict/1"}, {"schema": "hangdoc.verdict/1", "findings": 3}]
)
def test_a_damaged_verdict_is_no_cause(verdict: dict[str, Any]) -> None:
    assert made(verdicts=(verdict,)).playbook == "unknown"


def test_secrets_in_new_texts_are_masked() -> None:
    token = "ghp_012345678901234567890123456789012345"
    alert = made(label=f"train.py --token {token}", recurrence=f"again with {token}")
    assert token not in message.body(alert) + alert.title + str(message.data(alert))


def test_the_data_of_an_event_is_json_with_the_names_of_the_contract() -> None:
    data = json.loads(json.dumps(message.data(message.alert(known(suspected()), "updated", 2, AT))))
    assert {"incident", "class", "playbook", "confidence", "culprits", "actions", "text", "title"} <= set(data)
    assert data["culprits"] == [{"rank": 2, "host": "node-a", "site": "finish (train.py:31)"}]
    assert "cls" not in data


def test_the_host_is_that_of_the_culprit() -> None:
    verdict = to_json(verdicts.dead_link())
    verdict["findings"] = verdict["findings"][1:]
    alert = made(hosts=tuple(f"node{i:02d}" for i in range(1, 9)), verdicts=(verdict,))
    assert (alert.host, alert.hosts) == ("node05", "node[01-08]")
    assert message.labels(alert, {"cluster": "a", "job": "mine"})["job"] == "7f3a"  # ours win
