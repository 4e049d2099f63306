"""Recordings of a watch: zstd-compressed JSON lines, append-only, readable up to the point where they were cut.

The first line of a file is a header. Each further line is an object with one key: `snapshot`, `verdict`, `recovered`
(a job ID: earlier findings about the job are over), or, as the last line of a closed file, `end`. Unknown keys are from
newer versions and are skipped.

A long recording is a ring of files, called segments, each readable alone. A segment's header has the recorder's run
(`run`), the number of the segment in that run, from 1 (`segment`), the number of snapshots in earlier segments
(`looks`), and the earlier segments that matter (`matters`): those with a verdict, or with the samples before it.
"""

from __future__ import annotations

import errno
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
from typing import Any

from hangdoc import __version__
from hangdoc.errors import HangdocError
from hangdoc.evidence import Snapshot
from hangdoc.recording import codec, verdict_json
from hangdoc.system import input_limits
from hangdoc.system.private_files import create, open_folder, sync_folder, write_all
from hangdoc.system.zstd_reader import ZstdReader
from hangdoc.verdict import Verdict

SCHEMA = "hangdoc.recording/1"
SUFFIX = ".jsonl.zst"
MAX_BYTES = 256 * 2**20  # on disk, all segments of one recorder
SEGMENT_BYTES = 8 * 2**20  # on disk; then a new segment starts
SEGMENT_TEXT = 256 * 2**20  # bytes unpacked, likewise
SEGMENT_S = 1800.0  # duration, likewise
MAX_SEGMENTS = 1000
LEADS = 40  # samples kept with a verdict: as many as the live watch judges over
MAX_FREED = 8  # things removed for one line if the disk is full
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
RETRY_S = 30.0  # pause after a failed write
MAX_LINE = 64 * 2**20  # bytes; a longer line counts as damage
MAX_PROBLEMS = 20  # reported per file
_CHUNK = 2**18  # bytes unpacked at a time
_HEADER = 64 * 2**10  # bytes of a header
_MAGIC = b"\x28\xb5\x2f\xfd"


class NotARecording(HangdocError):
    """The file is not a recording; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The content of one file, in the order of writing."""

    path: Path
    snapshots: tuple[Snapshot, ...]
    verdicts: tuple[Verdict, ...]
    truncated: bool = False  # cut or not closed: its writer was killed or still writes
    problems: tuple[str, ...] = ()  # one sentence for each unreadable part


@dataclass(slots=True)
class _Segment:
    """One file of the ring, as written by this recorder."""

    number: int
    name: str
    identity: tuple[int, int]  # device and inode
    began_s: float  # start, monotonic clock
    before: int  # snapshots in earlier segments
    size: int = 0  # bytes on disk
    text: int = 0  # bytes unpacked
    lines: int = 0
    matters: bool = False


class Recorder(AbstractContextManager["Recorder"]):
    """Appends snapshots and verdicts of one host to a ring of files in `directory`; the first write creates a file.

    Each write is passed to the kernel at once, so killing the writer loses at most one line. If the ring is full, the
    oldest segments without a verdict are removed first. Files of other writers are never removed.

    Write errors are not raised, so the watch continues without its recording. `say` gets the reason once; the recorder
    retries at every verdict and every RETRY_S. If the disk is full, `make_room` is called first: it removes something,
    or returns False.

    `durable`: header and verdicts survive a power failure as well; `sync` does the same for everything written so far.
    """

    def __init__(
        self,
        directory: Path,
        host: str,
        max_bytes: int = MAX_BYTES,
        say: Callable[[str], None] = lambda text: None,
        segment_s: float = SEGMENT_S,
        durable: bool = False,
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        self.directory = directory
        self.path: Path | None = None  # newest segment; None: nothing written yet
        self._host = host
        self._max_bytes = max_bytes
        self._segment_bytes = min(SEGMENT_BYTES, max_bytes // 8)
        self._segment_s = segment_s
        self._say = say
        self._durable = durable
        self._free = make_room
        self._run = secrets.token_hex(8)
        self._number = 0
        self._looks = 0
        self._past: list[_Segment] = []  # earlier segments that still exist, oldest first
        self._now: _Segment | None = None
        self._file = -1
        self._packer: Any = None
        self._failed_s: float | None = None  # time of the last failed write; None: the last write succeeded

    def snapshot(self, shot: Snapshot) -> None:
        """Record a snapshot, unless a recent write failed."""
        if self._failed_s is None or time.monotonic() - self._failed_s >= RETRY_S:
            self._keep({"snapshot": codec.encode(shot)})

    def verdict(self, verdict: Verdict) -> None:
        """Record a verdict; a finding protects its segment and the samples before it from removal."""
        self._keep({"verdict": verdict_json.to_json(verdict)}, verdict.status not in ("healthy", "unknown"))
        if self._durable:
            self.sync()

    def sync(self) -> None:
        """Make what was written survive a power failure."""
        if self._file >= 0:
            try:
                os.fsync(self._file)
            except OSError as error:
                self._stop(error)

    def recovered(self, job: str) -> None:
        """Record that a job has recovered."""
        self._keep({"recovered": job})

    def close(self) -> None:
        """Close the newest segment; no effect if nothing is open."""
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
            now = self._write(value)
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

    def _write(self, value: Mapping[str, Any]) -> _Segment:
        for _ in range(MAX_FREED):
            try:
                if self._now is not None and self._is_over(self._now):
                    self.close()
                now = self._now or self._open()
                self._append(value)
            except OSError as error:
                if error.errno not in FULL or not self._free():
                    raise
                self._leave()  # a part of the line may be on disk: go on in a new segment
            else:
                return now
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _is_over(self, now: _Segment) -> bool:
        """True if the segment is long enough, or was removed, in which case further writes would be lost."""
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
            # A window of 4 MiB spans the last snapshots of many ranks, so unchanged data costs almost nothing.
            parameters = ZstdCompressionParameters.from_level(3, window_log=22, write_checksum=True)
            self._packer = ZstdCompressor(compression_params=parameters).compressobj()
            written = now.isoformat("T", "seconds")
            header = {"schema": SCHEMA, "hangdoc": __version__, "host": self._host, "time": written}
            matters = [past.number for past in self._past if past.matters]
            place = {"run": self._run, "segment": segment.number, "looks": segment.before, "matters": matters}
            try:
                self._append({**header, **place})
                if self._durable:
                    os.fsync(self._file)
                    sync_folder(folder)
            except OSError:
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)  # else a full disk gets an empty file for each retry
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
        """Abandon the segment, which stays readable up to the failed write; report the reason once."""
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
            with suppress(OSError):  # on some filesystems (NFS, quota) the write fails only now
                os.close(self._file)
            self._file = -1

    def _make_room(self) -> None:
        """Remove our oldest segments until a new one fits, those that matter last."""
        while self._past and (
            len(self._past) >= MAX_SEGMENTS
            or sum(segment.size for segment in self._past) > self._max_bytes - self._segment_bytes
        ):
            oldest = next((segment for segment in self._past if not segment.matters), self._past[0])
            self._past.remove(oldest)
            with suppress(OSError), open_folder(self.directory) as folder:
                status = os.lstat(oldest.name, dir_fd=folder)
                if (status.st_dev, status.st_ino) == oldest.identity:  # else replaced by another file
                    os.unlink(oldest.name, dir_fd=folder)


def _create(folder: int, time: str, host: str) -> tuple[str, int]:
    """Create a new file, readable by its owner only, because stacks and variables are private."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", host)[:100]
    for number in range(1, 1000):
        name = f"incident-{time}-{safe}{'' if number == 1 else f'_{number:03d}'}{SUFFIX}"
        with suppress(FileExistsError):
            return name, create(name, folder)
    raise FileExistsError(f"1000 recordings with this time already exist ({time})")


@dataclass(frozen=True, slots=True)
class Header:
    """The position of a segment in its recording, from its first line."""

    host: str
    run: str
    segment: int
    looks: int  # snapshots in earlier segments
    matters: frozenset[int]  # numbers of earlier segments


def header(path: Path) -> Header | None:
    """The header of a segment; None for other files, and for recordings in a single file. Raises OSError."""
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
    """The recording in a file, or all recordings in a directory. `known`: record types, by default those of all probes.

    A cut or damaged file is read up to the damage. An unreadable file in a directory becomes an empty recording with
    the reason. Raises NotARecording if there is none, and OSError.
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
        raise NotARecording(
            f"{path} contains no recording (incident-*{SUFFIX}); make one with `hangdoc watch --record`"
        )
    return tuple(found)


def _read_file(path: Path, known: codec.Registry) -> Recording:
    cuts: list[str] = []
    texts = lines(path, cuts)
    if not is_header(next(texts, b"")):
        raise NotARecording(f"{path} is not a hangdoc recording: its first line does not contain {SCHEMA}")
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
        except (ValueError, RecursionError) as error:  # BadRecord and the errors of json are ValueErrors
            problems.append(f"{path}:{number}: line skipped: {str(error)[:200]}")
    problems.extend(f"{path}: {cut}" for cut in cuts)
    return Recording(path, tuple(snapshots), tuple(verdicts), bool(cuts) or not closed, tuple(problems))


def is_header(line: bytes) -> bool:
    """True if this is the first line of a recording."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and str(value.get("schema", "")).startswith("hangdoc.recording/")


def lines(path: Path, cuts: list[str], longest: int = MAX_LINE) -> Iterator[bytes]:
    """The complete lines of a file. Appends a sentence to `cuts` if the file is cut or damaged. Raises OSError."""
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
        cuts.append("the last line is incomplete; read up to there")


def _unpacked(path: Path, cuts: list[str]) -> Iterator[bytes]:
    """The content of a plain or zstd file, in chunks, up to the first damage."""
    if path.exists() and not path.is_file():  # opening a FIFO would block
        raise OSError(f"{path} is not a regular file")
    with path.open("rb") as file:
        if file.peek(4)[:4] != _MAGIC:
            while chunk := file.read(_CHUNK):
                yield chunk
            return
        from zstandard import ZstdError

        total, most = 0, input_limits.most_streamed(os.fstat(file.fileno()).st_size)
        reader = ZstdReader(file)
        try:
            while chunk := reader.read1(_CHUNK):
                total += len(chunk)
                if total > most:
                    cuts.append(f"unpacks to more than {most >> 20} MiB, too much for its size; read up to there")
                    return
                yield chunk
        except ZstdError as error:
            cuts.append(f"damaged: {error}; read up to there")
