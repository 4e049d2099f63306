"""`hangdoc doctor`: what hangdoc may see here."""

from __future__ import annotations

from typing import Annotated

import typer

from hangdoc.commands.output import stdout_console, write


def command(
    json: Annotated[bool, typer.Option("--json", help="Write JSON: one object a check and line.")] = False,
) -> int:
    """What hangdoc may see here, and how to let it.

    \b
    hangdoc doctor
    hangdoc doctor --json | jq 'select(.ok == false)'

    Exit codes: 0 all is well, 3 something cannot be seen.
    """
    from hangdoc.doctor import checks

    found = checks()
    code = 0 if all(check.ok is not False for check in found) else 3
    if json:
        from dataclasses import asdict

        from hangdoc.render.json import line

        for check in found:
            write(line(asdict(check)))
        return code
    from hangdoc.render.doctor import show

    show(found, stdout_console())
    return code
