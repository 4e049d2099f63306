"""Recordings of incidents: JSON lines under zstd, append-only, readable up to wherever they were cut.

The first line is a header; each further line is an object with one key: `snapshot`, `verdict`, or, as the last line of
a recording that was closed, `end`. Unknown keys are for newer versions and are passed over.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

from hangdoc import __version__, codec, verdict_json
from hangdoc.errors import HangdocError
from hangdoc.evidence import Snapshot
from hangdoc.verdict import Verdict

SCHEMA = "hangdoc.recording/1"
SUFFIX = ".jsonl.zst"
MAX_BYTES = 256 * 2**20  # of a file on disk: snapshots beyond are not kept, verdicts are
MAX_LINE = 64 * 2**20  # characters; a longer line is damage
MAX_TEXT = 8 * 2**30  # bytes unpacked: more is not an incident but a bomb
_PIECE = 2**7  # bytes of a packed file unpacked at a time
_MAGIC = b"\x28\xb5\x2f\xfd"


class NotARecording(HangdocError):
    """The file is something else; the text says so in one sentence."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What one file holds, in the order it was written."""

    path: Path
    snapshots: tuple[Snapshot, ...]
    verdicts: tuple[Verdict, ...]
    truncated: bool = False  # the file was cut, or never closed: its writer was killed, or still writes
    problems: tuple[str, ...] = ()  # a sentence for each thing that could not be read


class Recorder(AbstractContextManager["Recorder"]):
    """Appends what one host saw to one file in `directory`, made with the first write.

    After each write all of it is with the kernel: killing the writer costs at most the line it was writing.
    """

    def __init__(self, directory: Path, host: str, max_bytes: int = MAX_BYTES) -> None:
        self.directory = directory
        self.path: Path | None = None  # None: nothing written yet
        self._host = host
        self._max_bytes = max_bytes
        self._file: IO[bytes] | None = None
        self._stream: Any = None
        self._lines = 0

    def snapshot(self, shot: Snapshot) -> None:
        """Keep a snapshot, unless the file is full; raises OSError."""
        if self._file is None or self._file.tell() < self._max_bytes:
            self._write({"snapshot": codec.encode(shot)})

    def verdict(self, verdict: Verdict) -> None:
        """Keep a verdict; raises OSError."""
        self._write({"verdict": verdict_json.to_json(verdict)})

    def close(self) -> None:
        """End the file properly; harmless when nothing was written or it is closed already."""
        if self._file is None:
            return
        try:
            self._write({"end": self._lines})
            self._stream.close()
        finally:
            self._file.close()
            self._file = None

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, value: dict[str, Any]) -> None:
        if self._file is None:
            self._open()
        self._append(value)
        self._lines += 1

    def _append(self, value: dict[str, Any]) -> None:
        from zstandard import FLUSH_BLOCK

        self._stream.write(json.dumps(value, separators=(",", ":")).encode() + b"\n")
        self._stream.flush(FLUSH_BLOCK)

    def _open(self) -> None:
        from zstandard import ZstdCompressionParameters, ZstdCompressor

        now = datetime.now(timezone.utc)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.path, self._file = _create(self.directory, f"{now:%Y%m%dT%H%M%SZ}", self._host)
        # A window of 4 MiB holds the last snapshots of many ranks: what did not change costs next to nothing.
        parameters = ZstdCompressionParameters.from_level(3, window_log=22, write_checksum=True)
        self._stream = ZstdCompressor(compression_params=parameters).stream_writer(self._file, closefd=False)
        time = now.isoformat("T", "seconds")
        self._append({"schema": SCHEMA, "hangdoc": __version__, "host": self._host, "time": time})


def _create(directory: Path, time: str, host: str) -> tuple[Path, IO[bytes]]:
    """A file that was not there before; unbuffered, and for its owner only: stacks and variables are private."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", host)[:100]
    for number in range(1, 1000):
        path = directory / f"incident-{time}-{safe}{'' if number == 1 else f'_{number}'}{SUFFIX}"
        try:
            return path, os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0)
        except FileExistsError:
            continue
    raise FileExistsError(f"{directory} holds 1000 recordings of this second")


def read(path: Path, known: codec.Registry | None = None) -> tuple[Recording, ...]:
    """The recording in a file, or all those in a directory; `known` probes are those there are if None.

    A cut or damaged file is read up to the cut; a file in a directory that cannot be read at all is an empty recording
    that says why. Raises NotARecording where there is none, and OSError.
    """
    known = known or codec.registry()
    if not path.is_dir():
        return (_read_file(path, known),)
    found = []
    for file in sorted(path.iterdir()):
        if file.name.endswith((SUFFIX, ".jsonl")) and file.is_file():
            try:
                found.append(_read_file(file, known))
            except (NotARecording, OSError) as error:
                found.append(Recording(file, (), (), problems=(str(error),)))
    if not found:
        raise NotARecording(f"{path} holds no recording (incident-*{SUFFIX}): make one with `hangdoc watch --record`")
    return tuple(found)


def is_recording(path: Path) -> bool:
    """True where the file's content, whatever its name, begins as a recording does."""
    try:
        return _is_header(next(_lines(path, []), b""))
    except OSError:
        return False


def _read_file(path: Path, known: codec.Registry) -> Recording:
    cuts: list[str] = []
    lines = _lines(path, cuts)
    if not _is_header(next(lines, b"")):
        raise NotARecording(f"{path} is no recording of hangdoc: it does not begin with a line that says {SCHEMA}")
    snapshots, verdicts, problems, closed = [], [], [], False
    for number, line in enumerate(lines, 2):
        try:
            value = json.loads(line)
            if not isinstance(value, dict):
                raise codec.BadRecord("not an object")
            if "snapshot" in value:
                snapshots.append(codec.decode_snapshot(value["snapshot"], known))
            elif "verdict" in value:
                verdicts.append(verdict_json.from_json(value["verdict"]))
            closed = "end" in value
        except (ValueError, RecursionError) as error:  # BadRecord and what json raises are ValueErrors
            problems.append(f"{path}:{number}: line passed over: {str(error)[:200]}")
    problems.extend(f"{path}: {cut}" for cut in cuts)
    return Recording(path, tuple(snapshots), tuple(verdicts), bool(cuts) or not closed, tuple(problems))


def _is_header(line: bytes) -> bool:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and str(value.get("schema", "")).startswith("hangdoc.recording/")


def _lines(path: Path, cuts: list[str]) -> Iterator[bytes]:
    """The whole lines of a file; where it was cut is said in `cuts`."""
    rest = bytearray()
    for chunk in _unpacked(path, cuts):
        *whole, last = chunk.split(b"\n")
        for part in whole:
            rest += part
            yield bytes(rest)
            rest.clear()
        rest += last
        if len(rest) > MAX_LINE:
            cuts.append(f"a line is longer than {MAX_LINE} bytes; read up to there")
            return
    if rest:
        cuts.append("the last line is not whole; read up to there")


def _unpacked(path: Path, cuts: list[str]) -> Iterator[bytes]:
    """The bytes of a plain or zstd file, piece by piece, up to the first damage."""
    if path.exists() and not path.is_file():  # opening a FIFO would wait for ever
        raise OSError(f"{path} is not a regular file")
    with path.open("rb") as file:
        if file.peek(4)[:4] != _MAGIC:
            while chunk := file.read(_PIECE):
                yield chunk
            return
        from zstandard import ZstdDecompressor, ZstdError

        total = 0
        unpacker = ZstdDecompressor(max_window_size=2**27).decompressobj(read_across_frames=True)
        # Small pieces: what a damaged one would have given is lost, and a piece of a bomb is still bearable.
        while piece := file.read(_PIECE):
            try:
                chunk = unpacker.decompress(piece)
            except ZstdError as error:
                cuts.append(f"damaged: {error}; read up to there")
                return
            total += len(chunk)
            if total > MAX_TEXT:
                cuts.append(f"unpacks to more than {MAX_TEXT} bytes; read up to there")
                return
            yield chunk
