"""Metrics, checked by promtool and read over HTTP as Prometheus does."""

from __future__ import annotations

import json
import re
import socket
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from hangdoc.alerts.alerts import Alerts
from hangdoc.alerts.config import AlertsConfig, WebhookConfig
from hangdoc.daemon.metrics import (
    MAX_CLIENTS,
    MAX_JOBS,
    MAX_PLAYBOOKS,
    JobState,
    Metrics,
    MetricsServer,
    write_textfile,
)
from hangdoc.errors import HangdocError
from hangdoc.verdict import CLASSES, STATUSES
from tests.support import requirements
from tests.support.incident_records import life
from tests.support.paths import ROOT
from tests.support.polling import until

DEPLOY = ROOT / "deploy"
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def full() -> Metrics:
    """Metrics with a value in each family."""
    metrics = Metrics()
    jobs = [JobState("7f3a", "stalled", 1_700_000_000.0, "4711"), JobState("none", "healthy")]
    metrics.round(0.3, jobs, at=1_700_000_060.0)
    metrics.incident("network", "dead-link")
    metrics.incident("", "")
    metrics.probe_failed("stacks", 2)
    metrics.usage(12.5, 60 * 2**20, 1)
    metrics.alerts({("webhook", "delivered"): 3}, {"webhook": 1})
    return metrics


def text(metrics: Metrics) -> str:
    return generate_latest(metrics.registry).decode()


def series(metrics: Metrics) -> Series:
    families = read_text(text(metrics))
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def promtool(*arguments: str | Path, given: str = "") -> None:
    requirements.met(requirements.commands(("promtool",), "prometheus"))
    done = subprocess.run(["promtool", *arguments], input=given, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    if arguments[:2] == ("check", "metrics"):
        assert not done.stdout + done.stderr  # advice has exit code 0 in some versions


# --- values ---------------------------------------------------------------------------------------


def test_every_family_is_there_with_its_value() -> None:
    found = series(full())
    expected: list[tuple[str, dict[str, str], float]] = [
        ("hangdoc_jobs", {"status": "stalled"}, 1),
        ("hangdoc_jobs", {"status": "healthy"}, 1),
        ("hangdoc_jobs", {"status": "slow"}, 0),
        ("hangdoc_job_stalled_timestamp_seconds", {"job_id": "7f3a", "slurm_job": "4711"}, 1_700_000_000),
        ("hangdoc_incidents_total", {"class": "network", "playbook": "dead-link"}, 1),
        ("hangdoc_incidents_total", {"class": "unknown", "playbook": "unknown"}, 1),
        ("hangdoc_round_seconds_bucket", {"le": "0.25"}, 0),
        ("hangdoc_round_seconds_bucket", {"le": "0.5"}, 1),
        ("hangdoc_round_seconds_bucket", {"le": "+Inf"}, 1),
        ("hangdoc_round_seconds_sum", {}, 0.3),
        ("hangdoc_round_seconds_count", {}, 1),
        ("hangdoc_last_round_timestamp_seconds", {}, 1_700_000_060),
        ("hangdoc_probe_failures_total", {"probe": "stacks"}, 2),
        ("hangdoc_self_cpu_seconds_total", {}, 12.5),
        ("hangdoc_self_memory_bytes", {}, 60 * 2**20),
        ("hangdoc_governor_level", {}, 1),
        ("hangdoc_alerts_total", {"outcome": "delivered", "receiver": "webhook"}, 3),
        ("hangdoc_spool_entries", {"receiver": "webhook"}, 1),
    ]
    assert {key: found[key] for key in [(name, tuple(sorted(labels.items()))) for name, labels, _ in expected]} == {
        (name, tuple(sorted(labels.items()))): value for name, labels, value in expected
    }
    assert any(name == "hangdoc_build_info" for name, _ in found)


@pytest.mark.parametrize("metrics", [full(), Metrics()], ids=["full", "new"])
def test_promtool_finds_nothing_to_improve(metrics: Metrics) -> None:
    promtool("check", "metrics", given=text(metrics))


def test_500_job_turnovers_leave_no_series_behind() -> None:
    metrics = Metrics()
    metrics.round(0.1, ())
    before = set(series(metrics))
    for number in range(500):
        job = JobState(f"job{number}", "stalled", 1.0 + number, str(number))
        metrics.round(0.1, [job])
        assert len(series(metrics)) == len(before) + 1
    metrics.round(0.1, ())
    assert set(series(metrics)) == before


def test_labels_are_bounded() -> None:
    metrics = Metrics()
    hostile = 'a"b\n{}\\ é\ud800' + "x" * 10_000
    metrics.round(0.1, [JobState(f"{number}{hostile}", hostile, 1.0, hostile) for number in range(MAX_JOBS + 100)])
    for number in range(MAX_PLAYBOOKS + 100):
        metrics.incident(hostile, f"{number}{hostile}")
        metrics.probe_failed(f"{number}{hostile}")
    found = series(metrics)
    names = [name for name, _ in found]
    assert names.count("hangdoc_job_stalled_timestamp_seconds") == MAX_JOBS
    assert names.count("hangdoc_incidents_total") == MAX_PLAYBOOKS + 1
    assert sum(value for (name, _), value in found.items() if name == "hangdoc_incidents_total") == MAX_PLAYBOOKS + 100
    assert found["hangdoc_jobs", (("status", "unknown"),)] == MAX_JOBS + 100
    values = {value for _, labels in found for label, value in labels if label not in ("version", "le")}
    assert all(re.fullmatch(r"[\w.:/@+-]{0,80}", value, re.ASCII) for value in values)
    assert {value for _, labels in found for label, value in labels if label == "class"} == {"unknown"}
    promtool("check", "metrics", given=text(metrics))


def test_statuses_and_classes_are_those_of_the_contract() -> None:
    metrics = Metrics()
    metrics.round(0.1, [JobState(status, status) for status in STATUSES])
    for cls in CLASSES:
        metrics.incident(cls, "x")
    found = series(metrics)
    assert all(found["hangdoc_jobs", (("status", status),)] == 1 for status in STATUSES)
    assert all(found["hangdoc_incidents_total", (("class", cls), ("playbook", "x"))] == 1 for cls in CLASSES)


def test_the_counters_of_alerts_fit(tmp_path: Path) -> None:
    config = AlertsConfig(webhook=WebhookConfig(url="http://127.0.0.1:1/"))
    with closing(Alerts(config, tmp_path)) as alerts:
        for change in life():
            alerts.notify(change)
        until(lambda: alerts.outcomes)
        metrics = Metrics()
        metrics.alerts(alerts.outcomes, alerts.waiting)
    found = series(metrics)
    assert found["hangdoc_spool_entries", (("receiver", "webhook"),)] == 3
    assert found["hangdoc_alerts_total", (("outcome", "retried"), ("receiver", "webhook"))] == 1


# --- where they are -------------------------------------------------------------------------------


@contextmanager
def served(metrics: Metrics, health: list[str]) -> Iterator[int]:
    server = MetricsServer(metrics, lambda: health[0], 0)
    with closing(server):
        yield server.port


def get(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()


def test_prometheus_gets_openmetrics_and_others_text() -> None:
    with served(full(), [""]) as port:
        status, kind, body = get(port, "/metrics", Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
        assert (status, kind.split(";")[0]) == (200, "application/openmetrics-text")
        families = {family.name for family in read_openmetrics(body)}  # type: ignore[no-untyped-call]
        assert {"hangdoc_jobs", "hangdoc_build"} <= families
        status, kind, body = get(port, "/metrics")
        assert (status, kind.split(";")[0]) == (200, "text/plain")
        promtool("check", "metrics", given=body)
        assert get(port, "/metrics", "HEAD")[2] == ""
        assert get(port, "/other")[0] == 404
        assert get(port, "/metrics", "POST")[0] == 405


def test_health_is_that_of_the_daemon() -> None:
    health = [""]
    with served(Metrics(), health) as port:
        assert get(port, "/healthz")[::2] == (200, "ok\n")
        health[0] = "no round was finished for 40 s"
        assert get(port, "/healthz")[::2] == (503, "no round was finished for 40 s\n")


def test_only_loopback_is_listened_on() -> None:
    with served(Metrics(), [""]) as port:
        local = f"0100007F:{port:04X}"
        listening = [line.split()[1] for line in Path("/proc/self/net/tcp").read_text().splitlines() if " 0A " in line]
        assert [address for address in listening if address.endswith(f":{port:04X}")] == [local]


def test_a_port_that_is_taken_is_named() -> None:
    with served(Metrics(), [""]) as port, pytest.raises(HangdocError, match=rf"127\.0\.0\.1:{port}: Address already"):
        MetricsServer(Metrics(), lambda: "", port)


def test_clients_that_say_nothing_do_not_pile_up() -> None:
    with served(Metrics(), [""]) as port:
        before = threading.active_count()
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(MAX_CLIENTS)]
        until(lambda: threading.active_count() == before + MAX_CLIENTS)
        with socket.create_connection(("127.0.0.1", port)) as more:
            more.settimeout(20)
            assert more.recv(1) == b""  # turned away
        for one in silent:
            one.close()
        until(lambda: threading.active_count() == before)
        assert get(port, "/healthz")[0] == 200


def test_the_textfile_is_whole_and_readable_by_node_exporter(tmp_path: Path) -> None:
    path = tmp_path / "hangdoc.prom"
    write_textfile(full(), path)
    write_textfile(full(), path)
    assert list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    promtool("check", "metrics", given=path.read_text())
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        write_textfile(full(), path)


# --- rules and dashboard --------------------------------------------------------------------------


@cache
def dashboard() -> Any:
    return json.loads((DEPLOY / "grafana/hangdoc.json").read_text())


def expressions() -> list[str]:
    """The expressions of the dashboard, with Grafana's variables filled in."""
    values = {"$__rate_interval": "5m", "$__range": "1d", "$instance": ".*"}
    found = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    return [re.sub(r"\$\w+", lambda variable: values[variable[0]], expr) for expr in found]


def test_the_rules_do_what_they_say() -> None:
    promtool("check", "rules", DEPLOY / "prometheus/hangdoc.rules.yml")
    promtool("test", "rules", DEPLOY / "prometheus/hangdoc.test.yml")
    promtool("check", "config", DEPLOY / "prometheus/prometheus.yml")


def test_every_alert_has_a_test_and_a_runbook() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus/hangdoc.rules.yml").read_text())["groups"]
    alerts = [rule for group in rules for rule in group["rules"] if "alert" in rule]
    tests = yaml.safe_load((DEPLOY / "prometheus/hangdoc.test.yml").read_text())["tests"]
    fired = {one["alertname"] for test in tests for one in test.get("alert_rule_test", ()) if one["exp_alerts"]}
    assert {rule["alert"] for rule in alerts} == fired
    assert all({"summary", "runbook"} <= set(rule["annotations"]) for rule in alerts)


def test_promtool_parses_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(expressions())]
    file = tmp_path / "dashboard.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", file)
    assert len(rules) >= 16


def test_rules_and_dashboard_use_metrics_and_labels_that_exist() -> None:
    found = series(full())
    names = {name for name, _ in found}
    labels = {label for _, pairs in found for label, _ in pairs} | {"instance", "job"}
    rules = (DEPLOY / "prometheus/hangdoc.rules.yml").read_text()
    for shown in (rules, *expressions(), dashboard()["templating"]["list"][1]["definition"]):
        assert set(re.findall(r"(?<![:\w])hangdoc_\w+", shown)) - {"hangdoc_self_cpu_cores"} <= names
        assert set(re.findall(r"(\w+)=[~\"]", shown)) <= labels
        grouped = [word for group in re.findall(r"(?:by|on) \(([^)]*)\)", shown) for word in group.split(", ")]
        assert set(grouped) <= labels
