"""Figures of GPUs in the tables of nvidia-smi, rocm-smi, amd-smi, dcgmi and gpustat, and in fragments of them.

nvidia-smi: the table and `-q` (_nvidia_smi_rows.py), `--query-gpu`, `dmon` (nvidia-smi(1)). The number of a GPU
is that of its host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hangdoc.evidence.figures import Figure
from hangdoc.postmortem.readers._nvidia_smi_rows import detail, detail_gpu, gpu_row, is_slowdown, picked_gpu, state_row

MAX_GPUS = 4_096
MAX_QUERIES = 16  # of one command
UTILISATION, CLOCK, POWER, LIMIT, TEMPERATURE, SLOWED = (
    "gpu utilisation", "gpu clock", "gpu power", "gpu power limit", "gpu temperature", "gpu slowed",
)  # fmt: skip

_SHOWS = re.compile(
    r"\d ?W\b|\bMHz|\d ?%|C\b|Slowdown|Active|query-gpu|clocks|sclk|SMCLK|pclk|\bGPU\b|nvidia-smi"
    r"|[0-9A-F]{8}:[0-9A-F]{2}:",
    re.IGNORECASE,
)
_ON_HOSTS = re.compile(r"\b(?:pdsh|clush|pssh|srun|parallel|ansible|for) ")
_LABELLED = re.compile(r"([A-Za-z][\w.-]{0,100}): +(\S.{0,100})")
_QUERY = re.compile(r"--query-gpu[= ]([\w.,]{3,1000})")
_FIELD = re.compile(
    r"^(?:index|uuid|name|gpu_name|timestamp|count|pstate|serial|driver_version"
    r"|(?:gpu_)?(?:pci\.|bus_id|clocks|power|temperature|utilization|memory|ecc|fan|enforced|pcie)[\w.]{0,80})"
    r"(?: \[[\w%]{1,10}\])?$"
)
_REASON = re.compile(
    r"\b((?:HW|SW) (?:Thermal |Power Brake )?Slowdown|hw_(?:thermal_|power_brake_)?slowdown|sw_thermal_slowdown)"
    r"\s{0,60}[:=]\s{0,4}Active\b"
)
_HEADS = {
    "pwr": POWER, "power": POWER, "avgpwr": POWER, "power_usage": POWER, "powr": POWER, "gtemp": TEMPERATURE,
    "temp": TEMPERATURE, "gpu_t": TEMPERATURE, "tmptr": TEMPERATURE, "sm": UTILISATION, "gpu%": UTILISATION,
    "gputl": UTILISATION, "gfx%": UTILISATION, "pclk": CLOCK, "sclk": CLOCK, "smclk": CLOCK, "gfx_clk": CLOCK,
    "gfx_clock": CLOCK,
}  # fmt: skip
_NUMBER = re.compile(r"(?<![\w.])(\d{1,6}(?:\.\d{1,4})?) ?(W|MHz|Mhz|%|\u00b0?[cC])?(?![\w.])")
_GPUSTAT = re.compile(r"\[(\d{1,3})\] .{1,80}\| {0,4}(\d{1,3})(?:'|\u00b0) ?C, {0,4}(\d{1,3}) ?%")
_HOST = re.compile(r"^\W{0,8}((?=[a-z\d.-]{0,60}\d)[a-z][\w.-]{1,60}):?\W{0,8}$")
_SAME = re.compile(r"\bsame (?:command|query|thing|one|call)\b|\bsame\W{0,4}$", re.IGNORECASE)
_DETAILS = {"SM": CLOCK, "GPU Current Temp": TEMPERATURE, "Power Draw": POWER, "Gpu": UTILISATION}  # names in -q
_BITS = {0x8: "HW Slowdown", 0x20: "SW Thermal Slowdown", 0x40: "HW Thermal Slowdown", 0x80: "HW Power Brake Slowdown"}


@dataclass(slots=True)
class GpuTables:
    """Takes the lines of a text in order."""

    found: list[Figure] = field(default_factory=list)
    host: str = ""
    _columns: list[str] = field(default_factory=list)  # of --query-gpu
    _before: list[str] = field(default_factory=list)  # the columns of the last query
    _queries: list[list[str]] = field(default_factory=list)  # columns of each query of the last command
    _heads: list[str] = field(default_factory=list)  # of dmon, rocm-smi, amd-smi, dcgmi
    _gpu: str = ""  # that the next lines describe
    _picked: str = ""  # the only GPU that the last command asks for
    _row: int = 0
    _everywhere: list[str] = field(default_factory=list)  # columns of a query that ran on several hosts

    def feed(self, text: str, host: str | None, number: int) -> None:
        if host:
            self._enter(host)
        self._before = self._columns or self._before
        if host and _SAME.search(text):  # a prompt: `root@gn7:~# (same command)`
            self._columns, self._row = self._before, 0
        if not _SHOWS.search(text) and not (self._heads and re.match(r"\W{0,6}\d", text)):
            if not text.strip():
                self._columns, self._heads = [], []
            elif title := _HOST.match(text):
                self._enter(title[1])
            return
        if len(self.found) < MAX_GPUS * 8:
            self.found += self._figures(text, number)

    def _enter(self, host: str) -> None:
        if host != self.host:
            self.host, self._heads, self._gpu, self._row = host, [], "", 0
            self._columns = self._everywhere

    def _figures(self, text: str, number: int) -> Iterator[Figure]:
        if queries := _QUERY.findall(text):
            self._queries = [query.split(",") for query in queries[:MAX_QUERIES]]
            self._columns, self._row = self._queries[0], 0
            self._everywhere = self._columns if _ON_HOSTS.search(text) else []
            return
        if "nvidia-smi" in text:
            picked = picked_gpu(text)
            self._picked = "" if picked is None else str(picked)
            if self._picked:
                self._gpu = self._picked
                return
        cells = [cell.strip() for cell in text.split(",")]
        if self._columns and len(cells) != len(self._columns) and cells[0].isdecimal():  # the next query has no head
            self._columns = next((one for one in self._queries if len(one) == len(cells)), self._columns)
        if len(cells) > 1 and all(map(_FIELD.match, cells)):
            self._columns, self._row = [cell.split(" ")[0] for cell in cells], 0
        elif self._columns and len(cells) == len(self._columns):
            yield from self._queried(cells, number)
        elif found := _GPUSTAT.search(text):
            yield self._figure(TEMPERATURE, found[1], found[2], number)
            yield self._figure(UTILISATION, found[1], found[3], number)
        elif reason := _REASON.search(text):
            yield self._figure(SLOWED, self._gpu or "?", reason[1].replace("_", " "), number)
        elif bus := detail_gpu(text):
            self._gpu, self._picked = self._picked or bus, ""
        elif self._gpu and (pair := detail(text)) and pair.depth and pair.name in _DETAILS:
            yield from self._detail(_DETAILS[pair.name], pair.value, number)
        elif self._is_head(text):
            return
        elif self._heads:
            yield from self._listed(text, number)
        else:
            yield from self._tabled(text, number)

    def _queried(self, cells: Sequence[str], number: int) -> Iterator[Figure]:
        if labelled := _LABELLED.fullmatch(cells[0]):  # by pdsh or clush: the host of this row only
            around, self.host = self.host, labelled[1]
            yield from self._queried([labelled[2], *cells[1:]], number)
            self.host = around
            return
        row = dict(zip(self._columns, cells, strict=True))
        gpu = row.get("index") or row.get("pci.bus_id") or row.get("gpu_bus_id") or row.get("uuid") or str(self._row)
        self._row += 1
        for name, cell in row.items():
            value = _NUMBER.match(cell)
            if "reasons" in name and cell == "Active":
                reason = name.rpartition(".")[2].replace("_", " ")
                if is_slowdown(reason):
                    yield self._figure(SLOWED, gpu, reason, number)
            elif name.endswith("reasons.active") and re.fullmatch(r"0x[0-9a-fA-F]{1,16}", cell):
                for reason in slowed_reasons(int(cell, 16)):
                    yield self._figure(SLOWED, gpu, reason, number)
            elif value and (kind := _kind_of_field(name)):
                yield self._figure(kind, gpu, value[1], number)

    def _detail(self, kind: str, value: str, number: int) -> Iterator[Figure]:
        match = _NUMBER.match(value)
        shown = any(one.kind == kind and one.owner == self._called(self._gpu) for one in self.found[-64:])
        if match and not shown:  # the current clocks come before the highest
            yield self._figure(kind, self._gpu, match[1], number)

    def _is_head(self, text: str) -> bool:
        heads = text.lower().replace("#", " ").replace("|", " ").split()
        if (
            len(heads) > 2
            and heads[0] in ("gpu", "device", "entity", "idx")
            and (sum(one in _HEADS for one in heads) > 1 or {"pid", "sm"} <= set(heads))  # pmon has one of them
        ):
            self._heads = heads
            return True
        return heads[:1] == ["idx"]  # the units of dmon

    def _listed(self, text: str, number: int) -> Iterator[Figure]:
        """A row under a head: by its place if it has a cell for each column, else by the units."""
        row = re.match(r"\W{0,6}(?:GPU )?(\d{1,3})\s", text)
        if not row:
            self._heads = []
            return
        cells = re.sub(r"^\W*GPU ", "", text).replace("|", " ").split()
        if len(cells) == len(self._heads):
            idle = "pid" in self._heads and cells[self._heads.index("pid")].isdecimal()  # pmon: `-` stands for nothing
            for head, cell in zip(self._heads, cells, strict=True):
                if head == "sm" and cell == "-" and idle:
                    yield self._figure(UTILISATION, row[1], "0", number)
                elif (kind := _HEADS.get(head)) and (value := _NUMBER.match(cell)):
                    yield self._figure(kind, row[1], value[1], number)
            return
        seen: set[str] = set()
        shares = []
        for value in _NUMBER.finditer(text, row.end()):
            unit = (value[2] or "").lower()
            kind = POWER if unit == "w" else CLOCK if unit == "mhz" else TEMPERATURE if unit.endswith("c") else ""
            if unit == "%":
                shares.append(value[1])
            elif kind and kind not in seen:
                seen.add(kind)
                yield self._figure(kind, row[1], value[1], number)
        if shares:
            last = "gpu%" in self._heads  # of rocm-smi
            yield self._figure(UTILISATION, row[1], shares[-1 if last else 0], number)

    def _tabled(self, text: str, number: int) -> Iterator[Figure]:
        """A line of nvidia-smi's table."""
        if row := gpu_row(text):
            self._gpu = row.index
        if not self._gpu or not (state := state_row(text)):
            return
        shown = {POWER: state.power, LIMIT: state.limit, UTILISATION: state.utilisation, TEMPERATURE: state.temperature}
        for kind, value in shown.items():
            if value and value.replace(".", "", 1).isdecimal():
                yield self._figure(kind, self._gpu, value, number)
        self._gpu = ""

    def _called(self, gpu: str) -> str:
        return f"{self.host}/{gpu}" if self.host else gpu

    def _figure(self, kind: str, gpu: str, value: str, number: int) -> Figure:
        return Figure(kind, kind, "gpu", self._called(gpu)[:120], value[:60], kind == SLOWED, False, None, number)


def _kind_of_field(name: str) -> str | None:
    if name in ("clocks.sm", "clocks.current.sm", "clocks.gr", "clocks.current.graphics"):
        return CLOCK
    if name in ("power.draw", "power.draw.instant", "power.draw.average"):
        return POWER
    if name in ("power.limit", "enforced.power.limit"):
        return LIMIT
    return {"utilization.gpu": UTILISATION, "temperature.gpu": TEMPERATURE}.get(name)


def slowed_reasons(bits: int) -> list[str]:
    """The slowdowns in a bitmask of clock event reasons (nvml.h)."""
    return [reason for bit, reason in _BITS.items() if bits & bit]
