"""`hangdoc incidents`: lists, shows, exports and prunes what the watch kept."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hangdoc.commands.output import say, stdout_console, write
from hangdoc.errors import HangdocError, UsageError

if TYPE_CHECKING:
    from hangdoc.incident.record import IncidentRecord
    from hangdoc.incident.store import Entry, IncidentStore, Limits

app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})

Dir = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIR", file_okay=False, help="Folder that `--incidents` of `hangdoc watch` named."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one incident per line.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="ID of an incident, its beginning, or `latest`.")]

_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@app.callback(invoke_without_command=True)
def command(context: typer.Context, json: Json = False, dir: Dir = None) -> int:
    """List, show, export and prune the incidents that hangdoc kept.

    \b
    hangdoc incidents                       all of them, newest first
    hangdoc incidents show latest           verdict, how it became known, outcome
    hangdoc incidents export 20261124 a.zip record and evidence, for a ticket
    hangdoc incidents prune --older-than 30d --dry-run
    hangdoc report latest                   judge the evidence again

    They are in $HANGDOC_STATE/incidents, else in /var/lib/hangdoc for root and in ~/.local/state/hangdoc for others.
    """
    if context.invoked_subcommand is None:
        return _list(json, dir)
    if json or dir:
        raise typer.BadParameter(f"give --dir and --json after `{context.invoked_subcommand}`", param_hint="--dir")
    return 0


@app.command("list")
def list_command(json: Json = False, dir: Dir = None) -> int:
    """List the incidents, newest first."""
    return _list(json, dir)


@app.command("show")
def show_command(id: Id, json: Json = False, dir: Dir = None) -> int:
    """Show one incident: its verdict, how that became known, its outcome.

    \b
    hangdoc incidents show latest
    """
    store = _store(dir)
    entry, record = store.find(id), store.load(id)
    if json:
        _write_json(entry)
        return 0
    from hangdoc.render.incident import show

    show(entry, _judged_together(store, record), stdout_console())
    return 0


def _judged_together(store: IncidentStore, record: IncidentRecord) -> IncidentRecord:
    """The record of a Slurm step with the verdict on the evidence of all tasks: each has judged its own ranks only."""
    if not record.step:
        return record
    from msgspec.structs import replace

    from hangdoc.diagnose import load_judge
    from hangdoc.postmortem.report import Unrecognised, report
    from hangdoc.recording.verdict_json import to_json

    judge = load_judge((), say)
    try:
        found = [to_json(job.verdict) for job in report((store.path(record.id),), judge=judge).jobs]
    except Unrecognised:
        return record
    mine = [verdict for verdict in found if verdict["job"]["id"] == record.job]
    return replace(record, verdicts=(*record.verdicts, *mine[:1]))


@app.command("export")
def export_command(
    id: Id,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to write: FILE.zip, FILE.tar.zst or FILE.html.")],
    dir: Dir = None,
) -> int:
    """Write an incident to a file that only you can read: its folder as an archive, or its report as a page.

    \b
    hangdoc incidents export latest incident.tar.zst
    hangdoc incidents export latest page.html
    """
    from hangdoc.system.private_files import replace_file

    store = _store(dir)
    entry = store.find(id)
    if file.name.endswith(".zip"):
        content = _zip(store, entry.id)
    elif file.name.endswith(".tar.zst"):
        content = _tar(store, entry.id)
    elif file.name.endswith(".html"):
        content = _page(store.path(entry.id))
    else:
        raise UsageError(f"cannot tell the format of {file}; name it .zip, .tar.zst or .html")
    replace_file(file, content)
    say(f"wrote {file}")
    return 0


@app.command("prune")
def prune_command(
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Remove incidents older than AGE: 30d, 12h. Default: 90d.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Keep N incidents at most. Default: 500.")
    ] = None,
    most: Annotated[
        str | None, typer.Option("--size", metavar="SIZE", help="Keep SIZE at most: 500M, 2G. Default: 2G.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")] = False,
    dir: Dir = None,
) -> int:
    """Remove old incidents; those that a running hangdoc writes stay.

    \b
    hangdoc incidents prune --older-than 30d
    """
    from hangdoc.formatting import size
    from hangdoc.incident.store import MAX_AGE_S, MAX_BYTES, MAX_INCIDENTS, Limits

    age_s = MAX_AGE_S if older_than is None else _quantity(older_than, _UNITS, "--older-than", "30d")
    most_bytes = MAX_BYTES if most is None else int(_quantity(most, _SIZES, "--size", "500M"))
    store = _store(dir, Limits(age_s, MAX_INCIDENTS if keep is None else keep, most_bytes))
    removed = store.prune(dry_run)
    for entry in removed:
        write(entry.id)
    freed = size(sum(entry.bytes for entry in removed))
    many = f"{len(removed)} incident{'s' * (len(removed) != 1)}, {freed}"
    say(f"{'would remove' if dry_run else 'removed'} {many}")
    return 0


def source_of(name: str, dir: Path | None = None) -> Path | None:
    """The folder of the incident with this ID, beginning of an ID, or `latest`; None: `name` looks like none.

    Raises UnknownIncident.
    """
    if name != "latest" and not re.fullmatch(r"\d{8}[A-Za-z0-9._-]*", name):
        return None
    store = _store(dir)
    return store.path(store.find(name).id)


def _store(dir: Path | None, limits: Limits | None = None) -> IncidentStore:
    from hangdoc.incident.store import IncidentStore, default_root

    return IncidentStore(dir or default_root(), limits, say)


def _list(json: bool, dir: Path | None) -> int:
    store = _store(dir)
    entries = store.entries()
    if json:
        for entry in entries:
            _write_json(entry)
        return 0
    if not entries:
        say(f"no incident in {store.folder}")
        return 0
    from hangdoc.render.incident import table

    write(table(entries, datetime.now(timezone.utc)))
    return 0


def _write_json(entry: Entry) -> None:
    from hangdoc.incident.record import SCHEMA
    from hangdoc.recording.codec import encode
    from hangdoc.render.json import line

    if entry.record is not None:
        write(line({"schema": SCHEMA, **encode(entry.record)}))


def _quantity(text: str, units: Mapping[str, float], option: str, example: str) -> float:
    match = re.fullmatch(r"([0-9]{1,12})([A-Za-z]*)", text)
    if match is None or match[2] not in units:
        known = ", ".join(unit for unit in units if unit)
        raise typer.BadParameter(f"{text!r} is not a number with a unit ({known}), as in {example}", param_hint=option)
    return int(match[1]) * units[match[2]]


def _zip(store: IncidentStore, id: str) -> bytes:
    import zipfile

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in store.files(id):
            archive.writestr(f"{id}/{name}", content)
    return packed.getvalue()


def _tar(store: IncidentStore, id: str) -> bytes:
    import tarfile

    from zstandard import ZstdCompressor

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in store.files(id):
            about = tarfile.TarInfo(f"{id}/{name}")
            about.size, about.mode = len(content), 0o600
            archive.addfile(about, io.BytesIO(content))
    return ZstdCompressor().compress(packed.getvalue())


def _page(folder: Path) -> bytes:
    from hangdoc.incident.incident import incidents
    from hangdoc.postmortem.report import Unrecognised, report
    from hangdoc.render.html import page

    try:
        return page(incidents(report((folder,), warn=say))).encode("utf-8", "replace")
    except Unrecognised:
        raise HangdocError(f"no evidence in {folder}: hangdoc could not record it") from None
