"""Debian's Alertmanager, and Apprise. Takes 10 s: Alertmanager groups for a second, Apprise is a child each time."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from hangdoc.alerts.alerts import Alerts
from hangdoc.alerts.config import AlertmanagerConfig, AlertsConfig, AppriseConfig
from tests.support import requirements
from tests.support.alert_receivers import Request, receiver
from tests.support.incident_records import life, suspected
from tests.support.paths import ROOT
from tests.support.polling import until
from tests.unit.alerts.test_alerts import QUICK, send

ALERTMANAGER = "prometheus-alertmanager"
CONFIG = """
route:
  receiver: test
  group_by: [incident]
  group_wait: 0s
  group_interval: 1s
  repeat_interval: 1h
receivers:
  - name: test
    webhook_configs: [{url: "%s/notified", send_resolved: true}]
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def alertmanager(folder: Path, notified: str) -> Iterator[str]:
    """Debian's Alertmanager, which tells `notified`; its address."""
    requirements.met(requirements.commands((ALERTMANAGER,), ALERTMANAGER))
    config = folder / "alertmanager.yml"
    config.write_text(CONFIG % notified)
    url = f"http://127.0.0.1:{free_port()}"
    listen = [f"--web.listen-address={url.removeprefix('http://')}", "--cluster.listen-address="]
    command = [ALERTMANAGER, f"--config.file={config}", f"--storage.path={folder / 'data'}", *listen]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            until(lambda: process.poll() is not None or is_ready(url), within_s=60)
            assert process.poll() is None, (folder / "log").read_text()
            yield url
        finally:
            process.kill()


def is_ready(url: str) -> bool:
    try:
        with urlopen(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def states(notification: Any) -> list[tuple[str, str]]:
    return sorted((alert["labels"]["playbook"], alert["status"]) for alert in notification["alerts"])


def test_alertmanager_tells_people_once_of_each_change(tmp_path: Path) -> None:
    with receiver() as people, alertmanager(tmp_path, people.url) as url:
        config = AlertsConfig(alertmanager=AlertmanagerConfig(urls=(url,), resend_s=1))
        fired, updated, resolved = life()
        with closing(Alerts(config, tmp_path / "spool", backoff=QUICK)) as alerts:
            send(alerts, fired)
            until(lambda: len(people.taken) >= 1)
            # Sent again, and again after a start: nobody hears of it twice.
            until(lambda: alerts.outcomes.get(("alertmanager", "refreshed"), 0) >= 2)
        with closing(Alerts(config, tmp_path / "spool", backoff=QUICK)) as alerts:
            until(lambda: alerts.outcomes.get(("alertmanager", "refreshed"), 0) >= 1)
            send(alerts, updated)
            until(lambda: len(people.taken) >= 2)
            until(lambda: alerts.outcomes.get(("alertmanager", "refreshed"), 0) >= 2)
            send(alerts, resolved)
            until(lambda: len(people.taken) >= 3)
            until(lambda: alerts.outcomes.get(("alertmanager", "refreshed"), 0) >= 4)
    first, second, third = people.taken
    assert {one["groupLabels"]["incident"] for one in people.taken} == {suspected().id}
    assert states(first) == [("unknown", "firing")]
    assert states(second)[0] == ("uneven-batches", "firing")
    assert ("unknown", "firing") not in states(second)
    assert third["status"] == "resolved"
    assert ("uneven-batches", "resolved") in states(third)
    (alert,) = (one for one in third["alerts"] if one["labels"]["playbook"] == "uneven-batches")
    assert alert["annotations"]["summary"].startswith("RECOVERED: job train.py (7f3a) on node-a")
    assert "culprit  rank 2" in alert["annotations"]["description"]
    assert alert["startsAt"].startswith("2024-11-24T03:15:00")


def test_the_example_for_alertmanager_is_valid() -> None:
    requirements.met(requirements.commands(("amtool",), ALERTMANAGER))
    done = subprocess.run(
        ["amtool", "check-config", ROOT / "deploy/alertmanager/alertmanager.yml"], capture_output=True
    )
    assert done.returncode == 0, done.stderr


def test_apprise_gets_the_screen_once_per_change(tmp_path: Path) -> None:
    """Its JSON service is as real as a chat; the first attempt fails."""
    if find_spec("apprise") is None:
        requirements.met("apprise is an extra (pip install 'hangdoc[alerts]')")

    def fail_first(request: Request) -> None:
        request.answer(503) if request.number == 0 else people.take(request)

    with receiver(fail_first) as people:
        url = people.url.replace("http://", "json://")
        config = AlertsConfig(apprise=AppriseConfig(urls=(f"{url}/token-in-address",)))
        said: list[str] = []
        with closing(Alerts(config, tmp_path, said.append, backoff=QUICK)) as alerts:
            send(alerts, *life())
            until(lambda: alerts.waiting["apprise"] == 0, within_s=60)
    assert [one["title"] for one in people.taken] == [
        "STALLED: job train.py (7f3a) on node-a",
        "STALLED, update: job train.py (7f3a) on node-a: uneven-batches",
        "RECOVERED: job train.py (7f3a) on node-a: uneven-batches",
    ]
    assert [one["type"] for one in people.taken] == ["failure", "failure", "success"]
    assert "culprit  rank 2" in people.taken[1]["message"]
    assert said[0] == (
        "alerts: apprise (json://): Apprise could not deliver; check the address with `apprise -vv ADDRESS`; "
        "hangdoc tries again"
    )
    assert "token-in-address" not in json.dumps(said)


def test_an_address_that_apprise_does_not_know_waits(tmp_path: Path) -> None:
    if find_spec("apprise") is None:
        requirements.met("apprise is an extra (pip install 'hangdoc[alerts]')")
    with closing(Alerts(AlertsConfig(apprise=AppriseConfig(urls=("nosuch://x",))), tmp_path)) as alerts:
        send(alerts, life()[0])
        until(lambda: alerts.outcomes == {("apprise", "retried"): 1}, within_s=60)
        assert alerts.waiting["apprise"] == 1


@pytest.mark.parametrize(
    "text", ["mailto://a\n# a comment\n\n  slack://b  json://c\n", "mailto://a slack://b json://c"]
)
def test_addresses_come_from_a_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "urls").write_text(text)
    config = AppriseConfig(urls_file=str(tmp_path / "urls"))
    assert config.addresses() == ("mailto://a", "slack://b", "json://c")
