"""`doctor --nodes` with an agent command that can only be an agent, as sudo allows it."""

from __future__ import annotations

import shlex
import sys

import pytest

from hangdoc.fleet.doctor import check_hosts
from hangdoc.fleet.transports import FleetOptions


@pytest.fixture
def agent(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pip makes of the entry point `hangdoc-agent`."""
    script = tmp_path_factory.mktemp("bin") / "hangdoc-agent"
    script.write_text(f"#!{sys.executable}\nfrom hangdoc.cli import agent\nagent()\n")
    script.chmod(0o755)
    return str(script)


def test_an_agent_that_answers_is_reached(agent: str) -> None:
    (check,) = check_hosts(FleetOptions("local", nodes="n[1-2]", agent=shlex.quote(agent)))
    assert (check.name, check.ok) == ("n[1-2]", True)
    assert "the agent of hangdoc" in check.detail


def test_an_agent_that_does_not_start_is_not_reached(agent: str) -> None:
    (check,) = check_hosts(FleetOptions("local", nodes="n1", agent=f"/nowhere{agent}"))
    assert (check.name, check.ok) == ("n1", False)
