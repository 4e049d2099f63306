"""The file in which torchelastic keeps the exception of a worker that failed: `error.json`, `@record`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hangdoc.evidence import End
from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, Who
from hangdoc.postmortem.readers import Found, Notes, Source
from hangdoc.postmortem.readers._logs.attribution import place_of
from hangdoc.postmortem.readers._logs.tracebacks import HEADING, Raised, read
from hangdoc.redaction.text import redact
from hangdoc.system import input_limits

MOST_BYTES = 4 * 2**20
TEXT = 400


class ElasticReader:
    name = "torchelastic error file"
    order = 20
    help = "decorate the script's main function with torch.distributed.elastic.multiprocessing.errors.record"

    def knows(self, source: Source) -> bool:
        head = source.head[:4096].lstrip()
        return head.startswith(b'{"message"') and (b"extraInfo" in source.head or source.path.name == "error.json")

    def read(self, source: Source, notes: Notes) -> Iterable[Found]:
        with source.open() as file:
            data = file.read(MOST_BYTES)
        notes.progress(source.size)
        try:
            message = input_limits.parsed_json(data, source.size).get("message")
        except input_limits.InputTooLarge as error:
            notes.problem(f"{source.name}: not read: {error}")
            return
        except (ValueError, AttributeError):
            notes.problem(f"{source.name}: damaged JSON; not read")
            return
        who = place_of(source).who
        yield from _pieces(source, who, message if isinstance(message, dict) else {"message": message})


def _pieces(source: Source, who: Who, message: dict[str, Any]) -> Iterable[Piece]:
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    raised = _raised(extra.get("py_callstack"))
    text = str(message.get("message") or (raised.text if raised else ""))
    at = _number(extra.get("timestamp"))
    kind, _, told = text.partition(": ")
    fields = {"type": kind, "message": told, "uncaught": "yes"}
    if raised and raised.causes:
        fields["cause"] = raised.causes[0]
    kept = {name: redact(name, value)[:TEXT] for name, value in fields.items()}
    said = LogEvent("exception", redact("", text[: 4 * TEXT])[:TEXT], source.name, 1, at, kept)
    yield Piece(who, "logs", Logs((said,), 1, at, at), at, launcher="torchrun")
    if (who.rank, who.pid) == (None, None):
        return
    if raised and raised.frames:
        yield Piece(who, "stacks", raised.stacks, at, launcher="torchrun")
    code = _number(message.get("errorCode"))
    end = End(signal=int(-code)) if code is not None and -65 < code < 0 else End(code=int(code or 1))
    yield Piece(who, "end", end, at, launcher="torchrun")


def _raised(callstack: object) -> Raised | None:
    if not isinstance(callstack, str):
        return None
    lines = iter(callstack[: 2**20].splitlines())
    return read(lines) if any(HEADING in line for line in lines) else None


def _number(value: object) -> float | None:
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if abs(number) < 10**12 else None


READER = ElasticReader()
