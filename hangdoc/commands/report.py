"""`hangdoc report`: post-mortem of whatever is left of a job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hangdoc.commands.options import Playbooks
from hangdoc.commands.output import progress, say, write
from hangdoc.commands.watch import print_verdicts, worst

if TYPE_CHECKING:
    from hangdoc.incident.incident import Incident


def command(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE...",
            exists=True,
            help="Recordings, Flight Recorder dumps, logs, pasted stacks: files, or folders of them, in any mix.",
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="Write the verdict as JSON, one object a line.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Write a ticket in Markdown.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", dir_okay=False, help="Write a page to FILE as well, readable by you alone."
        ),
    ] = None,
    playbooks: Playbooks = None,
) -> int:
    """Say afterwards why a job was stuck or failed, from whatever is left of it.

    \b
    hangdoc report incidents              recordings of `hangdoc watch --record incidents`
    hangdoc report logs/ /tmp/fr_dumps    logs and Flight Recorder dumps together
    hangdoc report stacks.txt --markdown  pasted `py-spy dump` output, as a ticket
    hangdoc report logs/ --html page.html a page that needs nothing else, to attach to it

    Exit codes: 0 healthy, 1 slow or suspect, 2 stalled or failed, 3 cannot tell, 64 wrong usage, 130 interrupted.
    """
    if json and markdown:
        raise typer.BadParameter("give one of --json and --markdown, not both", param_hint="--markdown")
    from hangdoc.incident.incident import incidents
    from hangdoc.postmortem.report import Unrecognised, report

    def told(text: str) -> None:
        for line in text.splitlines():
            say(line)

    try:
        with progress() as read:
            found = report(tuple(sources), tuple(playbooks or ()), told, read)
    except Unrecognised as error:
        told(str(error))
        return 3
    made = incidents(found, hashed=bool(html or markdown))
    verdicts, files = [one.verdict for one in made], made[0].files
    if markdown:
        from hangdoc.render.markdown import document

        write(document(verdicts, files, made[0].problems).rstrip("\n"))
    else:
        print_verdicts(verdicts, json, files)
    if html:
        _write_page(html, made)
    return worst(verdicts)


def _write_page(path: Path, made: Sequence[Incident]) -> None:
    """The page; what keeps it from being written is said, and the verdict and its exit code stand."""
    from hangdoc.render.html import page
    from hangdoc.system.private_files import replace_file

    try:
        replace_file(path, page(made).encode("utf-8", "replace"))
    except OSError as error:
        say(f"the page was not written: {path}: {error.strerror or error}")
    else:
        say(f"wrote {path}")
