"""Real jobs for the live tests: `with running(script, ranks) as job: job.wait_log("step 5", 60)`."""

from __future__ import annotations

from pathlib import Path

from hangdoc.trial import Trial, TrialError, running

ROOT = Path(__file__).resolve().parent.parent
HEALTHY = ROOT / "tests" / "healthy"
HUNG = ROOT / "tests" / "hung"
PLAYBOOKS = ROOT / "playbooks"

__all__ = ["HEALTHY", "HUNG", "PLAYBOOKS", "ROOT", "Trial", "TrialError", "running"]
