"""torchelastic's error file with the exception of a failed worker: `error.json`, written by `@record`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hangdoc.evidence import End
from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import EvidenceItem, ReadContext, Source
from hangdoc.postmortem.readers._logs.attribution import file_origin
from hangdoc.postmortem.readers._logs.tracebacks import HEADING, LoggedException, parse_traceback
from hangdoc.redaction.text import redact
from hangdoc.system import input_limits

MAX_BYTES = 4 * 2**20
TEXT = 400


class ElasticReader:
    name = "torchelastic error file"
    order = 20
    exclusive = True
    help = "decorate the script's main function with torch.distributed.elastic.multiprocessing.errors.record"

    def recognises(self, source: Source) -> bool:
        head = source.head[:4096].lstrip()
        return head.startswith(b'{"message"') and (b"extraInfo" in source.head or source.path.name == "error.json")

    def read(self, source: Source, context: ReadContext) -> Iterable[EvidenceItem]:
        with source.open() as file:
            data = file.read(MAX_BYTES)
        context.progress(source.size)
        try:
            message = input_limits.parsed_json(data, source.size).get("message")
        except input_limits.InputTooLarge as error:
            context.warn(f"{source.name}: not read: {error}")
            return
        except (ValueError, AttributeError):
            context.warn(f"{source.name}: damaged JSON; not read")
            return
        process = file_origin(source).process
        yield from _pieces(source, process, message if isinstance(message, dict) else {"message": message})


def _pieces(source: Source, process: ProcessRef, message: dict[str, Any]) -> Iterable[Piece]:
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    exception = _traceback(extra.get("py_callstack"))
    text = str(message.get("message") or (exception.text if exception else ""))
    at = _number(extra.get("timestamp"))
    kind, _, detail = text.partition(": ")
    fields = {"type": kind, "message": detail, "uncaught": "yes"}
    if exception and exception.causes:
        fields["cause"] = exception.causes[0]
    kept = {name: redact(name, value)[:TEXT] for name, value in fields.items()}
    event = LogEvent("exception", redact("", text[: 4 * TEXT])[:TEXT], source.name, 1, at, kept)
    yield Piece(process, "logs", Logs((event,), 1, at, at), at, launcher="torchrun")
    if (process.rank, process.pid) == (None, None):
        return
    if exception and exception.frames:
        yield Piece(process, "stacks", exception.stacks, at, launcher="torchrun")
    code = _number(message.get("errorCode"))
    end = End(signal=int(-code)) if code is not None and -65 < code < 0 else End(code=int(code or 1))
    yield Piece(process, "end", end, at, launcher="torchrun")


def _traceback(callstack: object) -> LoggedException | None:
    if not isinstance(callstack, str):
        return None
    lines = iter(callstack[: 2**20].splitlines())
    return parse_traceback(lines) if any(HEADING in line for line in lines) else None


def _number(value: object) -> float | None:
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if abs(number) < 10**12 else None


READER = ElasticReader()
