"""The lowest versions that `make lowest` installs."""

from __future__ import annotations

import pytest

from tests.tools.lowest import PYPROJECT, constraint, constraints


@pytest.mark.parametrize(
    ("requirement", "pinned"),
    [
        ("rich>=13", "rich==13"),
        ("rule-engine>=5.1,<6", "rule-engine==5.1"),
        ('tomli>=2; python_version < "3.11"', 'tomli==2; python_version < "3.11"'),
    ],
)
def test_the_lower_bound_is_pinned(requirement: str, pinned: str) -> None:
    assert constraint(requirement) == pinned


@pytest.mark.parametrize("requirement", ["rich", "rich<14", "rich==13.1", "rich>=13,>=13.2"])
def test_one_lower_bound_is_needed(requirement: str) -> None:
    with pytest.raises(ValueError, match="exactly one lower bound"):
        constraint(requirement)


def test_every_dependency_has_one() -> None:
    assert constraints(PYPROJECT.read_text())
