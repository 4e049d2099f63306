"""What the daemon of a node does with another configuration, and with what an earlier daemon left."""

from __future__ import annotations

import io
from collections import deque
from pathlib import Path

from hangdoc.alerts.config import AlertsConfig, AppriseConfig
from hangdoc.daemon.config import Config, MetricsConfig
from hangdoc.daemon.health import Steps
from hangdoc.daemon.log import Log
from hangdoc.daemon.node import Node
from hangdoc.daemon.notify import Notifier
from hangdoc.daemon.state import JobProcesses, boot_id
from tests.support.stalled_jobs import Kept, job


def test_a_reload_reads_the_addresses_of_apprise_again(tmp_path: Path) -> None:
    addresses = tmp_path / "apprise.urls"
    addresses.write_text("json://127.0.0.1:1/\n")
    config = Config(alerts=AlertsConfig(apprise=AppriseConfig(urls_file=str(addresses))), metrics=MetricsConfig(port=0))
    with Node(config, tmp_path / "state", Steps(), Log(io.StringIO(), journal=False), Notifier({})) as node:
        assert set(node._alerts.waiting) == {"apprise"}
        addresses.write_text("json://127.0.0.1:1/\nxml://127.0.0.1:1/\n")
        node.configure(config)
        assert set(node._alerts.waiting) == {"apprise", "apprise-2"}


def test_an_incident_whose_job_has_ended_is_lost_only_if_no_round_will_tell_of_its_end(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    id = kept.report()
    kept.log.close()
    config = Config(metrics=MetricsConfig(port=0))
    with Node(config, tmp_path, Steps(), Log(io.StringIO(), journal=False), Notifier({})) as node:
        node._ledger.open(id, job(), JobProcesses(boot_id(), ((1 << 30, 1),)))  # a process that runs no more
        history = node.rounds.session.history
        history[job()] = deque()
        node._found()
        assert [record.ended for record in kept.store.list()] == [None]
        del history[job()]
        node._found()
        (record,) = kept.store.list()
        assert record.outcome is not None
        assert record.outcome.kind == "lost"
