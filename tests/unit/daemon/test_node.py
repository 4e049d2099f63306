"""What the daemon of a node does with another configuration."""

from __future__ import annotations

import io
from pathlib import Path

from hangdoc.alerts.config import AlertsConfig, AppriseConfig
from hangdoc.daemon.config import Config, MetricsConfig
from hangdoc.daemon.health import Steps
from hangdoc.daemon.log import Log
from hangdoc.daemon.node import Node
from hangdoc.daemon.notify import Notifier


def test_a_reload_reads_the_addresses_of_apprise_again(tmp_path: Path) -> None:
    addresses = tmp_path / "apprise.urls"
    addresses.write_text("json://127.0.0.1:1/\n")
    config = Config(alerts=AlertsConfig(apprise=AppriseConfig(urls_file=str(addresses))), metrics=MetricsConfig(port=0))
    with Node(config, tmp_path / "state", Steps(), Log(io.StringIO(), journal=False), Notifier({})) as node:
        assert set(node._alerts.waiting) == {"apprise"}
        addresses.write_text("json://127.0.0.1:1/\nxml://127.0.0.1:1/\n")
        node.configure(config)
        assert set(node._alerts.waiting) == {"apprise", "apprise-2"}
