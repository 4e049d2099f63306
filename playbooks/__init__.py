"""The built-in playbooks: one folder per failure, with its rule, its runbook and the real job that reproduces it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent


def folders() -> tuple[Path, ...]:
    """Folders of the built-in playbooks, sorted by id."""
    return tuple(sorted(file.parent for file in ROOT.glob("*/playbook.yaml")))
