"""The lowest allowed version of each runtime dependency, as constraints for pip: `python -m tests.tools.lowest >FILE`."""

from __future__ import annotations

from pathlib import Path

import tomli
from packaging.requirements import Requirement

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def constraint(requirement: str) -> str:
    """`name==version` with the version of its one lower bound; ValueError if it has none, or more than one."""
    parsed = Requirement(requirement)
    bounds = [specifier.version for specifier in parsed.specifier if specifier.operator == ">="]
    if len(bounds) != 1:
        raise ValueError(f"{requirement}: needs exactly one lower bound (>=)")
    marker = f"; {parsed.marker}" if parsed.marker else ""
    return f"{parsed.name}=={bounds[0]}{marker}"


def constraints(pyproject: str) -> list[str]:
    """One constraint for each runtime dependency."""
    return [constraint(requirement) for requirement in tomli.loads(pyproject)["project"]["dependencies"]]


if __name__ == "__main__":
    print(*constraints(PYPROJECT.read_text()), sep="\n")
