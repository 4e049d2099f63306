"""Folders of the repository."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOKS = ROOT / "playbooks"
DATA = ROOT / "tests" / "data"
RECORDINGS = DATA / "recordings"
PROGRAMS = ROOT / "tests" / "support" / "programs"
HEALTHY = ROOT / "tests" / "live" / "jobs" / "healthy"
HUNG = ROOT / "tests" / "live" / "jobs" / "hung"
