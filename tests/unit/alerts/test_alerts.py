"""Alerts and real receivers that fail, hang, redirect, flood and drip: none is lost, and none counts twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hangdoc.alerts.alerts import Alerts, Backoff
from hangdoc.alerts.config import AlertmanagerConfig, AlertsConfig, HeartbeatConfig, WebhookConfig
from hangdoc.alerts.spool import MAX_ENTRIES
from hangdoc.errors import HangdocError
from hangdoc.incident.log import Change
from tests.support.alert_receivers import AlertReceiver, Request, receiver
from tests.support.incident_records import ended, known, life, suspected
from tests.support.paths import ROOT
from tests.support.polling import until

QUICK = Backoff(0.01, 0.05)
NOWHERE = "http://127.0.0.1:1"  # nobody listens there


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def webhook(url: str, **given: Any) -> AlertsConfig:
    return AlertsConfig(webhook=WebhookConfig(url=f"{url}/hook", **given))


def alertmanager(url: str, **given: Any) -> AlertmanagerConfig:
    return AlertmanagerConfig(urls=(url,), **given)


def ids(events: Sequence[Any]) -> list[str]:
    return [event["id"] for event in events]


def waiting_files(spool: Path) -> list[Path]:
    return list((spool / "queue").rglob("*.json"))


def send(alerts: Alerts, *changes: Change) -> None:
    for change in changes:
        alerts.notify(change)


def test_fired_updated_and_resolved_arrive_once_and_in_order(tmp_path: Path) -> None:
    with receiver() as there, closing(Alerts(webhook(there.url), tmp_path, backoff=QUICK)) as alerts:
        changes = life()
        send(alerts, changes[0], changes[0], changes[1], changes[1], changes[2], changes[2])
        events = until(lambda: list(there.taken), lambda taken: len(taken) >= 3)
        until(lambda: alerts.outcomes == {("webhook", "delivered"): 3})
        assert alerts.waiting["webhook"] == 0
    assert [event["type"] for event in events] == [f"hangdoc.incident.{k}" for k in ("fired", "updated", "resolved")]
    incident = changes[0].incident.id
    assert ids(there.taken) == [f"{incident}/{revision}" for revision in (1, 2, 3)]
    assert waiting_files(tmp_path) == []
    assert {event["specversion"] for event in events} == {"1.0"}
    assert there.requests[0].headers["Content-Type"].startswith("application/cloudevents+json")
    assert [event["data"]["class"] for event in events] == ["unknown", "collective_wait", "collective_wait"]
    assert "culprit  rank 2" in events[1]["data"]["text"]
    assert events[2]["data"]["outcome"] == "The job went on after 2 min."


def test_a_receiver_that_fails_half_the_time_gets_every_alert_once(tmp_path: Path) -> None:
    """Half of its failures come after it took the alert: only the id tells it that it has seen it."""
    chance = random.Random(18)
    lock = threading.Lock()

    def half(request: Request) -> None:
        with lock:
            what = chance.random()
        if what < 0.25:
            request.answer(503)
        elif what < 0.5:
            there.keep(request)
            request.hang_up()
        else:
            there.take(request)

    with receiver(half) as there, closing(Alerts(webhook(there.url), tmp_path, backoff=QUICK)) as alerts:
        lives = [life(number) for number in range(20)]
        for changes in zip(*lives, strict=True):
            send(alerts, *changes)
        until(lambda: alerts.waiting["webhook"] == 0, within_s=60)
        assert alerts.outcomes["webhook", "retried"] > 0
    first = list(dict.fromkeys(ids(there.taken)))
    assert sorted(first) == sorted(f"{one.incident.id}/{n}" for one, *_ in lives for n in (1, 2, 3))
    assert len(first) < len(there.taken)  # the wire saw some twice
    for one, *_ in lives:
        own = [id for id in first if id.startswith(one.incident.id)]
        assert own == sorted(own)


def test_a_receiver_that_hangs_delays_no_other(tmp_path: Path) -> None:
    def hang(request: Request) -> None:
        there.ended.wait(60)

    with receiver(hang) as there, receiver() as quick:
        config = AlertsConfig(alertmanager(quick.url), WebhookConfig(url=f"{there.url}/hook", timeout_s=60))
        alerts = Alerts(config, tmp_path, backoff=QUICK)
        send(alerts, *life())
        until(lambda: len(quick.taken) == 3)
        until(lambda: len(there.requests) == 1)
        until(lambda: alerts.waiting == {"alertmanager": 0, "webhook": 3})
    alerts.close()


def test_a_request_that_is_not_answered_in_time_is_sent_again(tmp_path: Path) -> None:
    def hang_once(request: Request) -> None:
        there.take(request) if request.number else there.ended.wait(60)

    said: list[str] = []
    with receiver(hang_once) as there:
        config = webhook(there.url, timeout_s=0.5)
        with closing(Alerts(config, tmp_path, said.append, backoff=QUICK)) as alerts:
            send(alerts, life()[0])
            until(lambda: len(said) == 2)
            assert alerts.waiting["webhook"] == 0
        assert len(there.taken) == 1
    host = there.url.removeprefix("http://")
    assert said == [
        f"alerts: webhook ({host}): no answer within 0.5 s; hangdoc tries again",
        f"alerts: webhook ({host}) works again",
    ]


@pytest.mark.parametrize(
    ("start", "outcome"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", "delivered"),
        (b"HTTP/1.1 200 OK\r\nX: ", "delivered"),  # the status is known
        (b"HTTP/1.1 20", "retried"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 100000\r\n\r\n", "retried"),
    ],
    ids=["body", "header", "status", "reason"],
)
def test_a_receiver_that_drips_is_cut_off(start: bytes, outcome: str, tmp_path: Path) -> None:
    def drip(request: Request) -> None:
        request.handler.wfile.write(start)
        while not there.ended.wait(0.05):
            request.handler.wfile.write(b"0")

    with receiver(drip) as there:
        alerts = Alerts(webhook(there.url, timeout_s=0.5), tmp_path, backoff=Backoff(60, 60))
        with closing(alerts):
            send(alerts, life()[0])
            until(lambda: dict(alerts.outcomes) == {("webhook", outcome): 1})


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    said: list[str] = []
    with receiver() as other, receiver(lambda request: request.answer(307, headers={"Location": other.url})) as there:
        with closing(Alerts(webhook(there.url), tmp_path, said.append, backoff=QUICK)) as alerts:
            send(alerts, life()[0])
            until(lambda: len(there.requests) >= 3)
            assert alerts.waiting["webhook"] == 1
        assert other.requests == []
    assert said[0].endswith("HTTP 307: it redirects; configure the final address; hangdoc tries again")


def test_a_large_answer_is_not_read(tmp_path: Path) -> None:
    whole = threading.Event()

    def flood(request: Request) -> None:
        there.keep(request)
        request.answer(200, bytes(64 * 2**20))
        whole.set()

    with receiver(flood) as there, closing(Alerts(webhook(there.url), tmp_path, backoff=QUICK)) as alerts:
        send(alerts, life()[0])
        until(lambda: alerts.outcomes.get(("webhook", "delivered")) == 1)
        assert len(there.taken) == 1
        assert not whole.is_set()


def test_an_alert_that_is_refused_holds_up_no_other(tmp_path: Path) -> None:
    said: list[str] = []

    def refuse(request: Request) -> None:
        request.answer(400, b"no \x1b[31mcolours") if request.number == 0 else there.take(request)

    with receiver(refuse) as there, closing(Alerts(webhook(there.url), tmp_path, said.append, backoff=QUICK)) as alerts:
        changes = life()
        send(alerts, changes[0], changes[1])
        until(lambda: alerts.outcomes == {("webhook", "refused"): 1, ("webhook", "delivered"): 1})
    assert said == [
        f"alerts: webhook ({there.url.removeprefix('http://')}) refuses {changes[0].incident.id}/1: HTTP 400 no colours"
    ]


def test_an_incident_whose_alert_always_fails_holds_up_no_other(tmp_path: Path) -> None:
    poison = suspected(0).id

    def behave(request: Request) -> None:
        request.answer(500) if request.value["subject"] == poison else there.take(request)

    with receiver(behave) as there, closing(Alerts(webhook(there.url), tmp_path, backoff=QUICK)) as alerts:
        for number in range(4):
            send(alerts, *life(number))
        until(lambda: alerts.waiting["webhook"] == 3)
        assert len(there.taken) == 9
        assert poison not in {event["subject"] for event in there.taken}


# --- restarts -------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from hangdoc.alerts.alerts import Alerts, Backoff
from hangdoc.system.private_files import replace_file
from tests.support.incident_records import life
from tests.unit.alerts.test_alerts import webhook
alerts = Alerts(webhook(sys.argv[1]), Path(sys.argv[2]), backoff=Backoff(0.01, 0.05))
print("ready", flush=True)
changes = [change for number in range(40) for change in life(number)]
if sys.argv[3] == "at once":
    for change in changes[:15]:
        alerts.notify(change)
    os.kill(os.getpid(), signal.SIGKILL)
store = Path(sys.argv[2], "store")  # as the daemon: the store first, and after a start what it has last
done = int(store.read_text()) if store.exists() else 0
for number in range(max(done, 1), len(changes) + 1):
    replace_file(store, str(number).encode())
    alerts.notify(changes[number - 1])
print("notified", flush=True)
sys.stdin.read()
"""


def killed(url: str, spool: Path, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", KILLED, url, str(spool), how]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)


def test_kill_between_spool_and_send_loses_nothing(tmp_path: Path) -> None:
    """Takes 1 s: a Python of its own. What it had under way when it was killed is refused, however late it is read."""
    with receiver(lambda request: request.answer(503)) as refusing:
        with killed(refusing.url, tmp_path, "at once") as child:
            child.wait(60)
        assert child.returncode == -signal.SIGKILL
        assert len(waiting_files(tmp_path)) == 15
        with receiver() as there, closing(Alerts(webhook(there.url), tmp_path, backoff=QUICK)) as alerts:
            until(lambda: alerts.waiting["webhook"] == 0)
    assert sorted(ids(there.taken)) == sorted(f"{suspected(i).id}/{n}" for i in range(5) for n in (1, 2, 3))


@pytest.mark.slow("kills a process again and again")
def test_kill_at_any_moment_loses_nothing_and_repeats_only_ids(tmp_path: Path) -> None:
    """Takes some 5 s: five Pythons one after the other, each killed a little later."""
    chance = random.Random(7)
    with receiver() as there:
        for _ in range(4):
            with killed(there.url, tmp_path, "while it sends") as child:
                assert child.stdout is not None
                assert child.stdout.readline() == "ready\n"
                goal = len(there.taken) + chance.randrange(1, 20)
                until(lambda goal=goal: len(there.taken) >= goal or not waiting_files(tmp_path))  # type: ignore[misc]
                child.kill()
        with killed(there.url, tmp_path, "while it sends") as child:
            assert child.stdout is not None
            assert [child.stdout.readline(), child.stdout.readline()] == ["ready\n", "notified\n"]
            until(lambda: not waiting_files(tmp_path))
            child.kill()
    assert set(ids(there.taken)) == {f"{suspected(i).id}/{n}" for i in range(40) for n in (1, 2, 3)}
    kinds = {(event["id"], event["type"]) for event in there.taken}
    assert len(kinds) == 120  # the same id is always the same alert
    assert len(there.taken) - 120 <= 8  # for each kill: one under way, and one that was not announced yet


def test_after_a_start_what_nobody_announced_is_announced(tmp_path: Path) -> None:
    """Killed between the incident on disk and its alert: the store knows more than the receivers."""
    with receiver() as there:
        with closing(Alerts(webhook(there.url), tmp_path, backoff=QUICK)) as alerts:
            for number in (1, 2, 3, 4):
                send(alerts, life(number)[0])
            until(lambda: alerts.waiting["webhook"] == 0)
        there.taken.clear()
        store = [
            suspected(1),  # nothing new
            known(suspected(2)),
            ended(suspected(3)),  # 4 is no longer there
            suspected(5),
            suspected(6, verdicts=()),  # not reported yet
            ended(suspected(7)),  # over, and nobody ever heard of it
        ]
        for _ in range(2):  # a second start has no news
            with closing(Alerts(webhook(there.url), tmp_path, backoff=QUICK)) as alerts:
                alerts.resume(store)
                until(lambda: alerts.waiting["webhook"] == 0)
    assert sorted((event["subject"][-1], event["type"].rpartition(".")[2]) for event in there.taken) == [
        ("2", "updated"),
        ("3", "resolved"),
        ("4", "resolved"),
        ("5", "fired"),
    ]


def test_an_incident_that_was_lost_and_is_found_fires_again(tmp_path: Path) -> None:
    with receiver() as there, closing(Alerts(webhook(there.url), tmp_path, backoff=QUICK)) as alerts:
        fired, updated, resolved = life()
        send(alerts, fired)
        alerts.resume(())  # such as a store that could not be read
        alerts.resume((fired.incident,))
        send(alerts, updated, resolved, updated)
        until(lambda: alerts.waiting["webhook"] == 0)
    kinds = [event["type"].rpartition(".")[2] for event in there.taken]
    assert kinds == ["fired", "resolved", "fired", "updated", "resolved"]
    assert len(set(ids(there.taken))) == 5


# --- the disk -------------------------------------------------------------------------------------


def test_a_full_disk_costs_no_alert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    with receiver() as there, closing(Alerts(webhook(there.url), tmp_path, backoff=QUICK)) as alerts:
        monkeypatch.setattr("hangdoc.alerts.spool.replace_file", full)
        changes = life()
        send(alerts, changes[0], changes[0], *changes)
        until(lambda: len(there.taken) == 3)
        until(lambda: alerts.waiting["webhook"] == 0)


def test_what_a_full_disk_did_not_take_is_written_once_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that is killed after that loses nothing."""

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    with closing(Alerts(webhook(NOWHERE), tmp_path, backoff=Backoff(60, 60))) as alerts:
        with monkeypatch.context() as patch:
            patch.setattr("hangdoc.alerts.spool.replace_file", full)
            send(alerts, *life())
            alerts.step()
            assert not waiting_files(tmp_path)
        alerts.step()
        assert len(waiting_files(tmp_path)) == len(life())
        with receiver() as there, closing(Alerts(webhook(there.url), tmp_path, backoff=QUICK)):
            until(lambda: len(there.taken) == len(life()))


def test_the_queue_is_bounded_and_keeps_the_newest_of_each_incident(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hangdoc.alerts.spool.MAX_ENTRIES", 10)
    with closing(Alerts(webhook(NOWHERE), tmp_path, backoff=Backoff(60, 60))) as alerts:
        for number in range(8):
            send(alerts, *life(number))
        assert alerts.waiting["webhook"] == 10 < MAX_ENTRIES
        assert alerts.outcomes["webhook", "dropped"] == 14
    names = {path.name for path in waiting_files(tmp_path)}
    assert names >= {f"{suspected(number).id}.000003.json" for number in range(8)}


def test_links_and_damaged_files_in_the_spool_are_left_alone(tmp_path: Path) -> None:
    spool, outside = tmp_path / "spool", tmp_path / "outside.json"
    outside.write_text("{}")
    with receiver() as there:
        with closing(Alerts(webhook(there.url), spool, backoff=QUICK)) as alerts:
            send(alerts, life(1)[0])
            until(lambda: alerts.waiting["webhook"] == 0)
        queue = spool / "queue/webhook"
        (queue / "a.000001.json").symlink_to(outside)
        (queue / "b.000001.json").write_text("{")
        (queue / "c.000001.json").mkdir()
        (queue / "notes.txt").write_text("mine")
        with closing(Alerts(webhook(there.url), spool, backoff=QUICK)) as alerts:
            send(alerts, life(2)[0])
            until(lambda: alerts.waiting["webhook"] == 0)
            assert alerts.outcomes["webhook", "dropped"] == 1
    assert len(there.taken) == 2
    assert outside.read_text() == "{}"
    assert sorted(path.name for path in queue.iterdir()) == ["a.000001.json", "c.000001.json", "notes.txt"]


def test_only_we_can_read_the_spool(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir(mode=0o755)
    with closing(Alerts(webhook(NOWHERE), spool, backoff=QUICK)) as alerts:
        send(alerts, life()[0])
    assert {path.stat().st_mode & 0o777 for path in [spool, *spool.rglob("*")] if path.is_dir()} == {0o700}
    files = [path for path in spool.rglob("*") if path.is_file()]
    assert len(files) == 2
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_a_spool_of_somebody_else_is_refused(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can make a folder of another user")
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(HangdocError, match="belongs to uid 65534"):
        Alerts(AlertsConfig(), tmp_path)


# --- Alertmanager and heartbeats ------------------------------------------------------------------


def posted(there: AlertReceiver) -> Iterator[tuple[str, bool]]:
    """Playbook, and whether it is over, of each alert of each post."""
    now = time.time()
    for alerts in there.taken:
        for alert in alerts:
            end = alert["endsAt"]
            yield alert["labels"]["playbook"], end < time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now + 100))


def test_an_update_ends_the_alert_under_its_earlier_labels(tmp_path: Path) -> None:
    with receiver() as there:
        config = AlertsConfig(alertmanager(there.url, labels={"cluster": "a"}))
        with closing(Alerts(config, tmp_path, backoff=QUICK)) as alerts:
            for change in life():
                send(alerts, change)
                until(lambda: alerts.waiting["alertmanager"] == 0)
    assert list(posted(there)) == [
        ("unknown", False),
        ("unknown", True),
        ("uneven-batches", False),
        ("unknown", True),
        ("uneven-batches", True),
    ]
    newest = there.taken[-1][-1]
    assert newest["labels"] == {
        "alertname": "HangdocIncident",
        "cluster": "a",
        "incident": suspected().id,
        "job": "7f3a",
        "host": "node-a",
        "playbook": "uneven-batches",
        "class": "collective_wait",
        "severity": "critical",
    }
    assert newest["annotations"]["summary"] == (
        "RECOVERED: job train.py (7f3a) on node-a: uneven-batches: The job went on after 2 min."
    )
    assert newest["annotations"]["runbook"] == "hangdoc runbook uneven-batches"
    assert newest["startsAt"] == "2024-11-24T03:15:00.000+00:00"


def test_an_open_incident_is_sent_again_also_after_a_start(tmp_path: Path) -> None:
    with receiver() as there:
        config = AlertsConfig(alertmanager(there.url, resend_s=1))
        with closing(Alerts(config, tmp_path, backoff=QUICK)) as alerts:
            send(alerts, life()[0])
            until(lambda: alerts.outcomes.get(("alertmanager", "refreshed")))
            assert alerts.outcomes["alertmanager", "delivered"] == 1
        count = len(there.taken)
        with closing(Alerts(config, tmp_path, backoff=QUICK)):
            until(lambda: len(there.taken) > count)
    assert len({str(one[0]["labels"]) for one in there.taken}) == 1


@pytest.mark.slow("waits for heartbeats that must not come")
def test_heartbeats_need_finished_rounds(tmp_path: Path) -> None:
    with receiver() as there:
        config = AlertsConfig(
            alertmanager(there.url, resend_s=1, heartbeat=True),
            heartbeat=HeartbeatConfig(f"{there.url}/beat", every_s=1),
        )
        with closing(Alerts(config, tmp_path, backoff=QUICK)) as alerts:
            send(alerts, life()[0])
            until(lambda: len(there.requests) >= 2)  # and a refresh: a second without a round has no heartbeat
            assert {request.path for request in there.requests} == {"/api/v2/alerts"}
            assert not any("Heartbeat" in str(one) for one in there.taken)
            alerts.step()
            until(lambda: [r.method for r in there.requests if r.path == "/beat"] == ["GET"])
            until(lambda: any("HangdocHeartbeat" in str(one) for one in there.taken))
            count = len(there.requests)
            until(lambda: len(there.requests) >= count + 2)  # refreshes: more than a second
            assert [r.path for r in there.requests].count("/beat") == 1
            alerts.step()
            until(lambda: [r.path for r in there.requests].count("/beat") == 2)


def test_without_receivers_nothing_is_kept_waiting(tmp_path: Path) -> None:
    with closing(Alerts(AlertsConfig(), tmp_path)) as alerts:
        send(alerts, *life())
        alerts.step(time.time() + 2 * 86_400)
        assert alerts.waiting == {}
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_less_confidence_and_a_longer_stall_are_no_news(tmp_path: Path) -> None:
    def change(**given: Any) -> Change:
        record = known(suspected())
        value = dict(record.verdicts[-1])
        value.update(stalled_for_s=given.pop("age", 1.0))
        value["findings"] = [{**value["findings"][0], **given}]
        return Change("updated", suspected(verdicts=(value,)))

    order: Callable[[], list[str]] = lambda: [event["data"]["confidence"] for event in there.taken]  # noqa: E731
    with receiver() as there, closing(Alerts(webhook(there.url), tmp_path, backoff=QUICK)) as alerts:
        send(alerts, change(confidence="medium"), change(confidence="medium", age=60.0), change(confidence="low"))
        send(alerts, change(confidence="high"), change(confidence="medium"))
        until(lambda: alerts.waiting["webhook"] == 0)
        assert order() == ["medium", "high"]
