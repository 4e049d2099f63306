"""Figures in the tables of profilers: how long a rank was in NCCL, in kernels of its own, and waited for batches.

* torch.profiler, `key_averages().table()` (torch/autograd/profiler_util.py, 1.8 to 2.13): columns `Self CPU`,
  `CPU total`, `Self CUDA`, `CUDA total`, `# of Calls`; `enumerate(DataLoader)#...` is the wait for a batch
* Nsight Systems, `nsys stats` (`cuda_gpu_kern_sum`): share, total in ns, count, and the name of each kernel
* SimpleProfiler of Lightning (src/lightning/pytorch/profilers/simple.py): mean, calls, total, share of each action

A table belongs to the rank that a line shortly above it names, if that is so of every table, and no two tables of a
rank differ.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from hangdoc.evidence.figures import Figure

MAX_TABLES = 4_096
MAX_COLUMNS = 40
MAX_HEADING_LINES = 8  # between the line that names the rank and its table
MAX_STEPS = 10**9
LEAST_BATCHES = 3  # the first one waits for the workers to start
NCCL, OWN, BATCHES, WHOLE = "time in kernels of nccl", "time in other kernels", "wait for batches", "profiled time"

_RANK = re.compile(r"(?<![A-Za-z])(?:global[ _-]?)?rank[\s:=#_.\[-]{0,3}(\d{1,6})(?![\d.]\d)", re.IGNORECASE)
_DEVICE = "CPU|CUDA|XPU|HPU|NPU|MTIA|PrivateUse1"
_TORCH_HEAD = re.compile(  # people remove columns, so that the table fits
    rf"\s*Name\s{{2,}}(?:\S.{{0,600}}?\s{{2,}})?"
    rf"(?:Self (?:{_DEVICE})(?: %)?|(?:{_DEVICE}) (?:total|time avg))(?:\s{{2,}}|\s*$)"
)
_NSYS_HEAD = re.compile(
    r"\s*\|?\s*Time ?\(%\)\s{1,4}\|?\s*Total Time(?: \(ns\))?\s.*\bName\b|Time ?\(%\),Total Time \(ns\),.*\bName\b"
)
_LIGHTNING_HEAD = re.compile(r"\s*\|\s*Action\s*\|.*\bNum calls\s*\|\s*Total time \(s\)")
_RULE = re.compile(r"[\s|+=-]*")
_TIME = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(ns|us|\u03bcs|ms|s)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "\u03bcs": 1e-6, "ms": 1e-3, "s": 1.0}
_TOTAL = re.compile(r"\s*Self (CPU|CUDA|XPU|HPU|NPU|MTIA|PrivateUse1) time total: {1,4}(\S{1,30})\s*")
_KERNEL = re.compile(
    r"(?:void )?(?:[\w:]{1,40}::)?(?:nccl|rccl)\w{0,20}(?:Kernel|_AllReduce|_AllGather|Dev)", re.IGNORECASE
)
_CALL = re.compile(r"(?:nccl|rccl|xccl|hccl):\w")
_BATCH = re.compile(r"enumerate\(DataLoader\)#")
_NEXT = re.compile(
    r"(?:\[_?\w{1,60}\])?\.?(?:train_dataloader_next|get_train_batch|_?next_batch|train_dataloader\.next)"
)
_EPOCH = re.compile(r"(?:\[_?\w{1,60}\])?\.?run_training_epoch")


@dataclass(slots=True)
class _Table:
    """One table, in seconds."""

    kind: str  # torch | nsys | lightning
    rank: int | None
    line: int
    columns: Sequence[str] = ()
    kernels: float = 0.0  # of NCCL
    calls: float = 0.0  # of NCCL, as torch names them
    device: float = 0.0  # all kernels
    batches: float = 0.0  # wait for them
    count: int = 0  # batches
    steps: float = 0.0
    whole: float = 0.0


@dataclass(slots=True)
class Profiles:
    """Takes the lines of a text in order."""

    found: list[Figure] = field(default_factory=list)
    _rank: int | None = None
    _named: int = 0  # line that names the rank
    _table: _Table | None = None
    _done: list[_Table] = field(default_factory=list)

    def feed(self, text: str, rank: int | None, number: int) -> None:
        if kind := _kind_of(text):
            self._close()
            if len(self._done) < MAX_TABLES:
                owner = rank if rank is not None else self._rank if number - self._named <= MAX_HEADING_LINES else None
                self._table = _Table(kind, owner, number, _split(text) if kind == "torch" else ())
                self._named = number  # a second table of the same rank may follow
            return
        table = self._table
        if table is not None and not _RULE.fullmatch(text) and not self._row(table, text):
            self._close()
            table = None
        if table is not None:
            self._named = number
        elif len(named := set(_RANK.findall(text))) == 1:
            self._rank, self._named = int(named.pop()), number
        elif named:
            self._rank = None

    def end(self) -> None:
        """Called at the end of the text."""
        self._close()
        figures = [list(_figures(table)) for table in self._done]
        shown: dict[tuple[str, str], set[str]] = {}
        for one in (one for several in figures for one in several):
            shown.setdefault((one.owner, one.name), set()).add(one.value)
        mixed = {table.rank is None for table in self._done} == {True, False}
        if mixed or any(owner and len(values) > 1 for (owner, _), values in shown.items()):
            figures = [list(_figures(replace(table, rank=None))) for table in self._done]
        self.found = [one for several in figures for one in several]

    def _close(self) -> None:
        """Finish the table."""
        if self._table is not None:
            self._done.append(self._table)
        self._table = None

    def _row(self, table: _Table, text: str) -> bool:
        """Read a row. False: the table is over."""
        if table.kind == "torch":
            return _torch_row(table, text)
        return _nsys_row(table, text) if table.kind == "nsys" else _lightning_row(table, text)


def _kind_of(text: str) -> str | None:
    if _TORCH_HEAD.match(text):
        return "torch"
    if _NSYS_HEAD.match(text):
        return "nsys"
    return "lightning" if _LIGHTNING_HEAD.match(text) else None


def _split(text: str) -> list[str]:
    return re.split(r"\s{2,}", text.strip())[:MAX_COLUMNS]


def _seconds(text: str) -> float:
    found = _TIME.fullmatch(text)
    return float(found[1]) * _UNITS[found[2]] if found else 0.0


def _torch_row(table: _Table, text: str) -> bool:
    if found := _TOTAL.fullmatch(text):
        if found[1] == "CPU":
            table.whole = _seconds(found[2])
        else:
            table.device = _seconds(found[2])
        return True
    cells = _split(text)
    if len(cells) != len(table.columns):
        return False
    row = dict(zip(table.columns, cells, strict=True))
    name = cells[0]
    self_device = next((value for head, value in row.items() if re.fullmatch(r"Self (?!CPU)\w+", head)), "")
    total_device = next((value for head, value in row.items() if re.fullmatch(r"(?!CPU)\w+ total", head)), "")
    if _KERNEL.match(name):
        table.kernels += _seconds(self_device or total_device)
    elif _CALL.match(name):
        table.calls += _seconds(total_device)
    elif _BATCH.match(name):
        table.batches += _seconds(row.get("CPU total", ""))
        table.count += _count(row.get("# of Calls", ""))
    elif name.startswith("ProfilerStep"):
        table.steps += _seconds(row.get("CPU total", ""))
    return True


def _nsys_row(table: _Table, text: str) -> bool:
    cells = _nsys_cells(text)
    if len(cells) < 4 or not re.fullmatch(r"\d{1,3}(?:\.\d{1,4})?", cells[0]):
        return not text.strip() and not table.device
    total = cells[1].replace(",", "")
    if not re.fullmatch(r"\d{1,18}", total):
        return False
    seconds = int(total) * 1e-9
    table.device += seconds
    if _KERNEL.match(cells[-1]):
        table.kernels += seconds
    return True


def _nsys_cells(text: str) -> list[str]:
    """The cells of a row, as a table, in columns, or of `--format csv`, which quotes a name with commas."""
    if re.match(r"\d{1,3}(?:\.\d{1,4})?,\d", text):
        try:
            return next(csv.reader([text]))[:MAX_COLUMNS]
        except csv.Error:
            return []
    return [cell.strip() for cell in (text.strip(" |").split("|") if text.count("|") > 3 else _split(text))]


def _lightning_row(table: _Table, text: str) -> bool:
    cells = [cell.strip() for cell in text.strip().strip("|").split("|")]
    if len(cells) < 4:
        return False
    total = float(cells[3]) if re.fullmatch(r"\d{1,12}(?:\.\d{1,6})?", cells[3]) else 0.0
    if _NEXT.fullmatch(cells[0]):
        table.batches += total
        table.count += _count(cells[2])
    elif _EPOCH.fullmatch(cells[0]):
        table.whole += total
    return True


def _count(text: str) -> int:
    return min(int(text), MAX_STEPS) if re.fullmatch(r"\d{1,12}", text) else 0


def _figures(table: _Table) -> Iterator[Figure]:
    nccl = table.kernels or table.calls
    whole = table.steps or table.whole
    if table.rank is not None and nccl and table.device > nccl:
        yield _figure("wait", NCCL, table, nccl)
        yield _figure("work", OWN, table, table.device - nccl)
    if table.count >= LEAST_BATCHES and whole >= table.batches > 0:
        yield _figure("input", BATCHES, table, table.batches / table.count, table.count)
        yield _figure("step", WHOLE, table, whole / table.count, table.count)


def _figure(kind: str, name: str, table: _Table, seconds: float, count: int = 1) -> Figure:
    of, owner = ("rank", str(table.rank)) if table.rank is not None else ("", "")
    return Figure(kind, name, of, owner, f"{seconds:.6g}", False, True, None, table.line, count)
