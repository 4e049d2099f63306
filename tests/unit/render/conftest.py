from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.support.verdicts import MakeConsole


@pytest.fixture
def console() -> MakeConsole:
    """Makes a console of some width, a colour terminal if asked, that writes into a string."""

    def make(width: int = 100, colour: bool = False) -> Console:
        return Console(
            file=io.StringIO(),
            width=width,
            force_terminal=colour,
            color_system="standard" if colour else None,
            markup=False,
            highlight=False,
        )

    return make
