"""`hangdoc report`: post-mortem of a job, from the files that it left."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from hangdoc.commands.incidents import source_of
from hangdoc.commands.options import Playbooks
from hangdoc.commands.output import progress, say, write
from hangdoc.commands.runbook import known, print_explanations
from hangdoc.commands.watch import print_verdicts, worst
from hangdoc.errors import HangdocError

if TYPE_CHECKING:
    from io import BufferedReader

    from hangdoc.incident.incident import Incident

STDIN = Path("-")
MAX_STDIN = 512 * 2**20  # bytes


def command(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE...",
            help="Recordings, Flight Recorder dumps, logs, pasted stacks: files or folders, in any mix. "
            "Or `-` for standard input, the ID of an incident, or `latest`.",
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one verdict per line.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a ticket in Markdown.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", dir_okay=False, help="Also write an HTML page to FILE, readable only by you."
        ),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="ID",
            help="Also print why the playbook ID applies or not: every condition of it, with its value.",
            autocompletion=known,
        ),
    ] = None,
    playbooks: Playbooks = None,
) -> int:
    """Find out from its files why a job was stuck or failed.

    \b
    hangdoc report latest                   the newest incident that `hangdoc watch` kept
    hangdoc report incidents/               recordings of `hangdoc watch --record incidents`
    hangdoc report logs/ /tmp/fr_dumps      logs and Flight Recorder dumps together
    hangdoc report stacks.txt --markdown    pasted `py-spy dump` output, as a ticket
    hangdoc report logs/ --html page.html   a self-contained page for the ticket
    pbpaste | hangdoc report -              what was copied from a chat or a ticket (Linux: xclip -o, wl-paste)
    hangdoc report rec/ --explain straggler why this playbook applies, or does not

    Exit codes: 0 healthy, 1 slow or suspect, 2 stalled or failed, 3 cannot tell, 64 wrong usage, 130 interrupted.
    """
    if json and markdown:
        raise typer.BadParameter("give one of --json and --markdown, not both", param_hint="--markdown")
    paths = tuple(STDIN if str(source) == "-" else _path(source) for source in sources)
    from hangdoc.diagnose import load_judge
    from hangdoc.incident.incident import incidents
    from hangdoc.postmortem.report import Unrecognised, report
    from hangdoc.rules.runbook import require

    if explain is not None:
        require(explain, playbooks or ())

    def say_lines(text: str) -> None:
        for line in text.splitlines():
            say(line)

    judge = cache(lambda: load_judge(tuple(playbooks or ()), say_lines))
    try:
        with _spooled(paths) as (given, names), progress() as read:
            found = report(given, warn=say_lines, progress=read, judge=judge, names=names)
    except Unrecognised as error:
        say_lines(str(error))
        return 3
    made = incidents(found, hashed=bool(html or markdown))
    verdicts, files = [one.verdict for one in made], made[0].files
    if markdown:
        from hangdoc.render.markdown import document

        write(document(verdicts, files, made[0].problems).rstrip("\n"))
    else:
        print_verdicts(verdicts, json, files)
    if explain is not None:
        print_explanations(judge(), found, explain, json)
    if html:
        _write_page(html, made)
    return worst(verdicts)


@contextmanager
def _spooled(paths: Sequence[Path]) -> Iterator[tuple[tuple[Path, ...], dict[Path, str]]]:
    """The paths with a private copy of standard input for `-`, which is removed at the end; and its name."""
    if STDIN not in paths:
        yield tuple(paths), {}
        return
    with tempfile.TemporaryDirectory(prefix="hangdoc-") as folder:  # mode 0700
        file = Path(folder) / "stdin"
        if sys.stdin.isatty():
            say("Paste the text, then press Enter and Ctrl-D.")
        left = MAX_STDIN
        with file.open("xb") as out:
            stream = cast("BufferedReader", sys.stdin.buffer)
            while left > 0 and (data := stream.read1(min(left, 2**16))):
                out.write(data)
                left -= len(data)
        if left <= 0:
            say(f"standard input: only the first {MAX_STDIN >> 20} MiB were read")
        yield tuple(dict.fromkeys(file if path == STDIN else path for path in paths)), {file: "standard input"}


def _path(source: Path) -> Path:
    """A file or a folder; an incident by its ID. Raises a usage error."""
    if source.exists():
        return source
    try:
        found = source_of(str(source))
    except HangdocError as error:
        raise typer.BadParameter(f"Path '{source}' does not exist, and {error}", param_hint="'SOURCE...'") from None
    if found is None:
        raise typer.BadParameter(f"Path '{source}' does not exist.", param_hint="'SOURCE...'")
    return found


def _write_page(path: Path, made: Sequence[Incident]) -> None:
    """Write the page; a failure is reported on stderr and changes neither verdict nor exit code."""
    from hangdoc.render.html import page
    from hangdoc.system.private_files import replace_file

    try:
        replace_file(path, page(made).encode("utf-8", "replace"))
    except OSError as error:
        say(f"could not write the page: {path}: {error.strerror or error}")
    else:
        say(f"wrote {path}")
