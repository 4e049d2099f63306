"""Output of `nvidia-smi` (the table, and main fields of `-q`): processes per GPU, utilisation and faults.

A GPU that the driver has lost shows `ERR!` in the table, or a message in its place.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._nvidia_smi_rows import (
    BROKEN,
    BUS,
    detail,
    detail_gpu,
    gpu_row,
    is_slowdown,
    picked_gpu,
    state_row,
)
from hangdoc.postmortem.readers._pasted_text import OwnerHints, opens, parse_channels, text_lines
from hangdoc.postmortem.readers._placement.placement import Placement
from hangdoc.postmortem.readers._text_source import placement_in

_TITLE = re.compile(r"\|\s*NVIDIA-SMI\s+(\S{1,40})\s+(?:Driver Version|KMD Version):\s*(\S{1,40}).*")
_LOST_ROW = re.compile(r"\|.*\bGPU is lost\b.*")
_PROCESS = re.compile(
    r"\|\s{1,6}(\d{1,3})\s+(?:(?:N/A|\d{1,3})\s+(?:N/A|\d{1,3})\s+)?(\d{1,9})\s+(C|G|C\+G|M\+C)\s+(\S.*?)\s+(\d{1,9}|N/A)(?:MiB)?\s*\|\s*"
)
_LOST = re.compile(rf"Unable to determine the device handle for (?:GPU|gpu)\s?\d*:?\s?({BUS}).{{0,20}}?:\s*(.{{1,80}})")
_LOG = re.compile(r"=+\s*NVSMI LOG\s*=+\s*")
_Q_HEAD = re.compile(r"\s+(\S[^:]{0,60}?)\s*")
OPENING = re.compile(r"\|\s*NVIDIA-SMI\s+\d|=+NVSMI LOG=+|Unable to determine the device handle for ")
MAX_ROWS = 4096  # GPUs, and processes, per table
_RANK_COMMANDS = re.compile(r"python|^ray::|mpi|torch|train", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; None: not shown."""

    index: int
    name: str | None = None
    bus: str | None = None
    utilisation: int | None = None  # percent of the last second during which a kernel ran
    memory_bytes: int | None = None  # in use
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    state: str | None = None  # P0 to P12
    uncorrected: int | None = None  # uncorrectable ECC errors since the driver was loaded
    lost: bool = False  # the driver cannot reach it
    slowed: tuple[str, ...] = ()  # active clock throttle reasons
    pids: tuple[int, ...] = ()  # compute processes


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of a host or of one process (record `gpu`)."""

    gpus: tuple[Gpu, ...]
    driver: str | None = None


class NvidiaSmiReader:
    name = "nvidia-smi output"
    order = 35
    marks = ("NVIDIA-SMI", "NVSMI LOG")
    help = "`nvidia-smi` and `nvidia-smi -q` on every host, while the job is stuck"

    def recognises(self, source: Source) -> bool:
        return opens(source, OPENING)

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        for piece in parse_channels(text_lines(source, context), OPENING, _Parser):
            yield from _pieces(piece.process, piece.record, source, placement_in(source))


@dataclass(slots=True)
class _Parser:
    """Parses one channel (`_pasted_text.ChannelParser`)."""

    hints: OwnerHints
    pieces: list[Piece] = field(default_factory=list)
    _process: ProcessRef | None = None
    _driver: str | None = None
    _gpus: dict[int, Gpu] = field(default_factory=dict)
    _pids: dict[int, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))
    _current: int | None = None
    _detailed: bool = False  # output of -q
    _path: list[tuple[int, str]] = field(default_factory=list)  # current headings of -q: indent, name
    _pid: int | None = None
    _picked: int | None = None  # the only GPU that the last command asked for

    def feed(self, text: str) -> bool:
        if "nvidia-smi" in text:
            self._picked = picked_gpu(text)
        if found := _TITLE.fullmatch(text):
            self._begin(found[2])
            return True
        if _LOG.fullmatch(text):
            self._begin(None)
            self._detailed = True
            return True
        if found := _LOST.search(text):
            if self._process is None:
                self._begin(None)
            self._add(Gpu(len(self._gpus), bus=found[1], lost=True))
            return True
        if self._process is None:
            return False
        return self._detail(text) if self._detailed else self._row(text)

    def _begin(self, driver: str | None) -> None:
        self.end()
        self._process, self._driver = self.hints.take(), driver

    def _add(self, gpu: Gpu) -> None:
        if len(self._gpus) < MAX_ROWS:
            self._gpus[gpu.index] = gpu
            self._current = gpu.index

    def _row(self, text: str) -> bool:
        if (row := gpu_row(text)) and row.bus:
            self._add(Gpu(int(row.index), row.name, row.bus, uncorrected=_int(row.uncorrected), lost=BROKEN in text))
        elif (state := state_row(text)) and self._current is not None:
            self._set(
                temperature_c=_int(state.temperature), state=state.state, power_w=_float(state.power),
                power_limit_w=_float(state.limit), memory_bytes=_mib(state.used), memory_total_bytes=_mib(state.total),
                utilisation=_int(state.utilisation), **({"lost": True} if text.count(BROKEN) >= 2 else {}),
            )  # fmt: skip
        elif _LOST_ROW.fullmatch(text) and self._current is not None:
            self._set(lost=True)
        elif (found := _PROCESS.fullmatch(text)) and found[3] != "G" and len(self._pids[int(found[1])]) < MAX_ROWS:
            self._pids[int(found[1])].append((int(found[2]), found[4]))
        return text[:1] in "|+" or not text.strip()

    def _detail(self, text: str) -> bool:
        """Parse a line of -q: a heading, or `Name : value`."""
        if bus := detail_gpu(text):
            self._path, self._pid = [], None
            first = self._picked if self._picked is not None and not self._gpus else len(self._gpus)
            self._add(Gpu(first, bus=bus))
        elif pair := detail(text):
            self._path = [one for one in self._path if one[0] < pair.depth]
            self._value(" / ".join(name for _, name in self._path), pair.name, pair.value)
        elif found := _Q_HEAD.fullmatch(text):
            depth = len(text) - len(text.lstrip())
            self._path = [*[one for one in self._path if one[0] < depth][:8], (depth, found[1])]
        else:
            return not text.strip()
        return True

    def _value(self, path: str, name: str, value: str) -> None:
        if self._current is None:
            self._driver = value if name == "Driver Version" else self._driver
            return
        number = _int(value.split(" ", 1)[0])
        if name == "Product Name":
            self._set(name=value)
        elif path.startswith("FB Memory Usage") and name in ("Used", "Total"):
            self._set(
                **{"memory_bytes" if name == "Used" else "memory_total_bytes": None if number is None else number << 20}
            )
        elif path.startswith("Utilization") and name == "Gpu":
            self._set(utilisation=number)
        elif name == "GPU Current Temp":
            self._set(temperature_c=number)
        elif name == "Performance State":
            self._set(state=value)
        elif "Volatile" in path and "Uncorrectable" in name and number is not None:
            self._set(uncorrected=(self._gpus[self._current].uncorrected or 0) + number)
        elif "Reasons" in path and value == "Active" and is_slowdown(name):
            self._set(slowed=(*self._gpus[self._current].slowed, name)[:8])
        elif path.startswith("Processes") and name == "Process ID":
            self._pid = number
        elif self._pid is not None and name == "Name" and len(self._pids[self._current]) < MAX_ROWS:
            self._pids[self._current].append((self._pid, value))
        elif "GPU is lost" in value or value == BROKEN:
            self._set(lost=True)

    def _set(self, **values: Any) -> None:
        if self._current is not None:
            self._gpus[self._current] = replace(self._gpus[self._current], **values)

    def end(self) -> None:
        if self._process is not None and self._gpus:
            named = {pid: name for users in self._pids.values() for pid, name in users}
            made = [replace(gpu, pids=tuple(pid for pid, _ in self._pids[gpu.index])) for gpu in self._gpus.values()]
            self.pieces.append(Piece(self._process, "gpu", (Gpus(tuple(made), self._driver), named)))
        self._process, self._driver, self._gpus, self._current, self._detailed, self._path, self._pid = (
            None,
            None,
            {},
            None,
            False,
            [],
            None,
        )
        self._pids = defaultdict(list)


def _pieces(
    process: ProcessRef, found: tuple[Gpus, dict[int, str]], source: Source, placement: Placement
) -> Iterator[Piece]:
    """The GPUs of the host and of each likely rank, and an event per lost GPU."""
    every, named = found
    host = ProcessRef(host=process.host)
    yield Piece(host, "gpu", every)
    for pid, name in named.items():
        if _RANK_COMMANDS.search(name.rsplit("/", 1)[-1]):
            own = Gpus(tuple(gpu for gpu in every.gpus if pid in gpu.pids), every.driver)
            yield Piece(ProcessRef(host=process.host, pid=pid), "gpu", own)
    for gpu in every.gpus:
        if gpu.lost:
            text = f"nvidia-smi: GPU {gpu.index} ({gpu.bus}) does not answer (ERR!)"
            event = LogEvent("gpu_lost", text, source.name, 0, None, {"gpu": gpu.bus or str(gpu.index)})
            rank = placement.rank_of_gpu(process.host, gpu.bus) if gpu.bus else None
            yield Piece(ProcessRef(rank, process.host), "logs", Logs((event,)))


def _int(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() and len(text) < 19 else None


def _float(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"\d{1,6}(?:\.\d{1,6})?", text) else None


def _mib(text: str | None) -> int | None:
    number = _int(text)
    return None if number is None else number << 20


READER = NvidiaSmiReader()
