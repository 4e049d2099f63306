"""Recordings of what a watch saw: JSON lines under zstd, append-only, readable up to wherever they were cut.

The first line of a file is a header; each further line is an object with one key: `snapshot`, `verdict`, `recovered`
(a job's id: what the verdicts before said of it is over), or, as the last line of a file that was closed, `end`.
Unknown keys are for newer versions and are passed over.

A long recording is a ring of files, its segments, each of which can be read alone. The header of a segment says to
which run of the recorder it belongs (`run`), its number in it from 1 on (`segment`), how many snapshots the segments
before it had (`looks`), and which of these matter (`matters`): those with a verdict, and what led to it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from hangdoc import __version__
from hangdoc.errors import HangdocError
from hangdoc.evidence import Snapshot
from hangdoc.recording import codec, verdict_json
from hangdoc.system import input_limits
from hangdoc.system.private_files import create, open_folder, write_all
from hangdoc.verdict import Verdict

SCHEMA = "hangdoc.recording/1"
SUFFIX = ".jsonl.zst"
MAX_BYTES = 256 * 2**20  # on disk, all segments of one recorder together
SEGMENT_BYTES = 8 * 2**20  # on disk; a longer segment is followed by a new one
SEGMENT_TEXT = 256 * 2**20  # bytes unpacked
SEGMENT_S = 1800.0
MOST_SEGMENTS = 1000
LEADS = 40  # looks that lead to a verdict: as many as the live watch judges over
RETRY_S = 30.0  # after a write that failed
MAX_LINE = 64 * 2**20  # bytes; a longer line is damage
MOST_PROBLEMS = 20  # sentences about one file
_CHUNK = 2**18  # bytes unpacked at a time
_PIECE = 2**7  # bytes of a damaged file unpacked at a time
_HEADER = 64 * 2**10  # bytes that a header may have
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


@dataclass(slots=True)
class _Segment:
    """One file of the ring, as its recorder made it."""

    number: int
    name: str
    identity: tuple[int, int]  # device and inode
    began_s: float  # monotonic clock
    before: int  # looks in the segments before it
    size: int = 0  # bytes on disk
    text: int = 0  # bytes unpacked
    lines: int = 0
    matters: bool = False


class Recorder(AbstractContextManager["Recorder"]):
    """Appends what one host saw to a ring of files in `directory`, the first made with the first write.

    After each write all of it is with the kernel: killing the writer costs at most the line it was writing. Where the
    ring is full, the oldest segments without a verdict go first; no file that this recorder did not make is removed.

    No failure to write is raised: a watch goes on without its recording. `say` is told once why it stopped; it is tried
    again with every verdict and every RETRY_S.
    """

    def __init__(
        self,
        directory: Path,
        host: str,
        max_bytes: int = MAX_BYTES,
        say: Callable[[str], None] = lambda text: None,
        segment_s: float = SEGMENT_S,
    ) -> None:
        self.directory = directory
        self.path: Path | None = None  # of the newest segment; None: nothing written yet
        self._host = host
        self._max_bytes = max_bytes
        self._segment_bytes = min(SEGMENT_BYTES, max_bytes // 8)
        self._segment_s = segment_s
        self._say = say
        self._run = secrets.token_hex(8)
        self._number = 0
        self._looks = 0
        self._past: list[_Segment] = []  # those that are there still, oldest first
        self._now: _Segment | None = None
        self._file = -1
        self._packer: Any = None
        self._failed_s: float | None = None  # when a write failed last; None: the last one did not

    def snapshot(self, shot: Snapshot) -> None:
        """Keep a snapshot, unless the disk refuses it."""
        if self._failed_s is None or time.monotonic() - self._failed_s >= RETRY_S:
            self._keep({"snapshot": codec.encode(shot)})

    def verdict(self, verdict: Verdict) -> None:
        """Keep a verdict, and what led to it for longer than the rest."""
        self._keep({"verdict": verdict_json.to_json(verdict)}, verdict.status not in ("healthy", "unknown"))

    def recovered(self, job: str) -> None:
        """Note that a job goes on again."""
        self._keep({"recovered": job})

    def close(self) -> None:
        """End the newest segment properly; harmless when nothing was written or it is closed already."""
        if self._now is None:
            return
        try:
            self._append({"end": self._now.lines - 1})
            self._send(self._packer.flush())  # the end of the frame, with its checksum
        except OSError as error:
            self._stop(error)
        finally:
            self._leave()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _keep(self, value: Mapping[str, Any], matters: bool = False) -> None:
        try:
            if self._now is not None and self._is_over(self._now):
                self.close()
            now = self._now or self._open()
            self._append(value)
        except OSError as error:
            self._stop(error)
            return
        self._looks += "snapshot" in value
        if matters:
            now.matters = True
            for newer, older in pairwise((now, *reversed(self._past))):
                if self._looks - newer.before >= LEADS:
                    break
                older.matters = True
        if self._failed_s is not None:
            self._failed_s = None
            self._say(f"recording again, to {self.path}")

    def _is_over(self, now: _Segment) -> bool:
        """Long enough, or removed by somebody: what is added to such a file is lost."""
        long = now.size >= self._segment_bytes or now.text >= SEGMENT_TEXT
        return long or time.monotonic() - now.began_s >= self._segment_s or not os.fstat(self._file).st_nlink

    def _open(self) -> _Segment:
        from zstandard import ZstdCompressionParameters, ZstdCompressor

        now = datetime.now(timezone.utc)
        self._make_room()
        with open_folder(self.directory, make=True) as folder:
            name, self._file = _create(folder, f"{now:%Y%m%dT%H%M%SZ}", self._host)
            status = os.fstat(self._file)
            identity, before = (status.st_dev, status.st_ino), self._looks
            self._now = segment = _Segment(self._number + 1, name, identity, time.monotonic(), before)
            # A window of 4 MiB holds the last snapshots of many ranks: what did not change costs next to nothing.
            parameters = ZstdCompressionParameters.from_level(3, window_log=22, write_checksum=True)
            self._packer = ZstdCompressor(compression_params=parameters).compressobj()
            written = now.isoformat("T", "seconds")
            header = {"schema": SCHEMA, "hangdoc": __version__, "host": self._host, "time": written}
            matters = [past.number for past in self._past if past.matters]
            place = {"run": self._run, "segment": segment.number, "looks": segment.before, "matters": matters}
            try:
                self._append({**header, **place})
            except OSError:
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)  # of a full disk: one empty file for each try
                self._leave(kept=False)
                raise
        self._number += 1
        self.path = self.directory / name
        return segment

    def _append(self, value: Mapping[str, Any]) -> None:
        from zstandard import COMPRESSOBJ_FLUSH_BLOCK

        assert self._now is not None
        text = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        self._send(self._packer.compress(text) + self._packer.flush(COMPRESSOBJ_FLUSH_BLOCK))
        self._now.text += len(text)
        self._now.lines += 1

    def _send(self, data: bytes) -> None:
        assert self._now is not None
        write_all(self._file, data)
        self._now.size += len(data)

    def _stop(self, error: OSError) -> None:
        """Leave the segment as it is, readable up to what was refused, and say why once."""
        if self._failed_s is None:
            why = error.strerror or str(error)
            self._say(f"the recording in {self.directory} has stopped: {why}; the watch goes on without it")
        self._failed_s = time.monotonic()
        self._leave()

    def _leave(self, kept: bool = True) -> None:
        if self._now is not None:
            if kept:
                self._past.append(self._now)
            self._now = None
        if self._file >= 0:
            with suppress(OSError):  # of some file systems (NFS, quota) a write fails only now
                os.close(self._file)
            self._file = -1

    def _make_room(self) -> None:
        """Remove our own oldest segments until another one fits, those that matter last."""
        while self._past and (
            len(self._past) >= MOST_SEGMENTS
            or sum(segment.size for segment in self._past) > self._max_bytes - self._segment_bytes
        ):
            oldest = next((segment for segment in self._past if not segment.matters), self._past[0])
            self._past.remove(oldest)
            with suppress(OSError), open_folder(self.directory) as folder:
                status = os.lstat(oldest.name, dir_fd=folder)
                if (status.st_dev, status.st_ino) == oldest.identity:  # else somebody else's by now
                    os.unlink(oldest.name, dir_fd=folder)


def _create(folder: int, time: str, host: str) -> tuple[str, int]:
    """A file that was not there before, for its owner only: stacks and variables are private."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", host)[:100]
    for number in range(1, 1000):
        name = f"incident-{time}-{safe}{'' if number == 1 else f'_{number:03d}'}{SUFFIX}"
        with suppress(FileExistsError):
            return name, create(name, folder)
    raise FileExistsError(f"there are 1000 recordings of this second ({time})")


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a segment, as far as it says where that belongs."""

    host: str
    run: str
    segment: int
    looks: int  # in earlier segments
    matters: frozenset[int]  # numbers of earlier segments


def header(path: Path) -> Header | None:
    """The header of a segment; None of any other file, also of a recording that is one file. Raises OSError."""
    try:
        found = json.loads(next(lines(path, [], _HEADER), b""))
        host, run, segment, looks, matters = (found[name] for name in ("host", "run", "segment", "looks", "matters"))
    except (ValueError, RecursionError, TypeError, KeyError):
        return None
    kinds = tuple(map(type, (host, run, segment, looks, matters)))
    if kinds != (str, str, int, int, list):
        return None
    return Header(host, run, segment, looks, frozenset(number for number in matters if type(number) is int))


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
        return is_header(next(lines(path, []), b""))
    except OSError:
        return False


def _read_file(path: Path, known: codec.Registry) -> Recording:
    cuts: list[str] = []
    texts = lines(path, cuts)
    if not is_header(next(texts, b"")):
        raise NotARecording(f"{path} is no recording of hangdoc: it does not begin with a line that says {SCHEMA}")
    snapshots, verdicts, problems, closed = [], [], [], False
    for number, line in enumerate(texts, 2):
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


def is_header(line: bytes) -> bool:
    """Whether this first line of a file makes it a recording."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and str(value.get("schema", "")).startswith("hangdoc.recording/")


def lines(path: Path, cuts: list[str], longest: int = MAX_LINE) -> Iterator[bytes]:
    """The whole lines of a file; where it was cut is said in `cuts`. Raises OSError."""
    rest: list[bytes] = []
    size = 0
    longest = min(longest, input_limits.most_whole(os.stat(path).st_size))
    for chunk in _unpacked(path, cuts):
        *whole, last = chunk.split(b"\n")
        for part in whole:
            line = b"".join((*rest, part)) if rest else part
            rest, size = [], 0
            if len(line) > longest:
                break
            yield line
        else:
            line = b""
            rest.append(last)
            size += len(last)
        if max(size, len(line)) > longest:
            cuts.append(f"a line is longer than {longest} bytes; read up to there")
            return
    if size:
        cuts.append("the last line is not whole; read up to there")


def _unpacked(path: Path, cuts: list[str]) -> Iterator[bytes]:
    """The bytes of a plain or zstd file, piece by piece, up to the first damage."""
    if path.exists() and not path.is_file():  # opening a FIFO would wait for ever
        raise OSError(f"{path} is not a regular file")
    with path.open("rb") as file:
        if file.peek(4)[:4] != _MAGIC:
            while chunk := file.read(_CHUNK):
                yield chunk
            return
        from zstandard import ZstdDecompressor, ZstdError

        total, most = 0, input_limits.most_streamed(os.fstat(file.fileno()).st_size)
        unpacker = ZstdDecompressor(max_window_size=2**27)
        try:
            with unpacker.stream_reader(file, read_size=_CHUNK, read_across_frames=True, closefd=False) as stream:
                while chunk := stream.read(_CHUNK):
                    total += len(chunk)
                    if total > most:
                        cuts.append(f"unpacks to more than {most >> 20} MiB, too much for its size; read up to there")
                        return
                    yield chunk
        except ZstdError as error:
            cuts.append(f"damaged: {error}; read up to there")
            file.seek(0)
            yield from _before_damage(file, unpacker, total)


def _before_damage(file: IO[bytes], unpacker: Any, skip: int) -> Iterator[bytes]:
    """What is left before a damage, after `skip` bytes: of the piece that it is in, all is lost."""
    from zstandard import ZstdError

    packed = unpacker.decompressobj(read_across_frames=True)
    with suppress(ZstdError):
        while piece := file.read(_PIECE):
            chunk = packed.decompress(piece)
            if len(chunk) > skip:
                yield chunk[skip:]
            skip = max(0, skip - len(chunk))
