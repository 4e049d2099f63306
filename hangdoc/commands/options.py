"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Playbooks = Annotated[
    list[Path] | None,
    typer.Option(
        "--playbooks",
        metavar="DIR",
        exists=True,
        file_okay=False,
        help="Add playbooks of your own. May be repeated.",
    ),
]
