"""Synthetic evidence for tests of the analyses: ranks at given lines of a real, parsed script.

What the probes would see is built by hand; the source around each line comes from the real `source` probe's parser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hangdoc.analysis.facts import Facts, derive, schema
from hangdoc.evidence import (
    Environ,
    Frame,
    Host,
    Place,
    Process,
    RankEvidence,
    Snapshot,
    Source,
    Stack,
    Stacks,
    Target,
    Tensor,
    ThreadCpu,
    Variable,
)
from hangdoc.introspect.parsers.line_context import places
from hangdoc.introspect.source_records import places_of

LIB = "/v/lib/python3.11/site-packages/torch"
C10D = f"{LIB}/distributed/distributed_c10d.py"
BACKWARD = (("_engine_run_backward", f"{LIB}/autograd/graph.py"), ("backward", f"{LIB}/_tensor.py"))


@dataclass(frozen=True)
class At:
    """One rank in one look: its user frames, outermost first, and what torch frames stand below them."""

    calls: Sequence[tuple[str, int]]
    inner: Sequence[tuple[str, str]] = ()  # (function, file), innermost first
    variables: Mapping[str, Sequence[Variable]] = field(default_factory=dict)  # by function, torch's as well
    native: Sequence[str] = ()  # innermost first
    state: str = "S"
    cpu_s: float = 1.0
    runs: int | None = None  # how often its main thread has come off its core
    threads: Sequence[str] = ("python", "pt_gloo_runloop")
    alive: bool = True
    environ: Mapping[str, str] = field(default_factory=dict)
    extra: Sequence[Stack] = ()
    records: Mapping[str, object] = field(default_factory=dict)  # of further probes, or in place of those made up here
    children: Sequence[tuple[int, tuple[Stack, ...]]] = ()  # stacks of its helpers


def in_c10d(function: str, *calls: tuple[str, int], **more: object) -> At:
    """A rank in a collective that it called from the last of `calls`."""
    return At(calls, [(function, C10D)], **more)  # type: ignore[arg-type]


def in_backward(*calls: tuple[str, int], **more: object) -> At:
    """A rank whose backward pass waits for DDP's reducer."""
    return At(calls, BACKWARD, **more)  # type: ignore[arg-type]


def number(name: str, value: float) -> Variable:
    return Variable(name, str(value), number=value, kind="int")


def tensor(name: str, *shape: int, dtype: str = "float32") -> Variable:
    return Variable(name, f"Tensor({list(shape)})", kind="tensor", tensor=Tensor(shape, dtype, "cpu"))


@dataclass
class ParsedSource:
    """A source file as probe `source` reports it, without the child process in between."""

    data: bytes
    known: dict[int, Place | None] = field(default_factory=dict)

    @classmethod
    def parse(cls, path: str) -> ParsedSource:
        """Raises what `places` raises."""
        data = Path(path).read_bytes()
        places(data, [])
        return cls(data)

    def place(self, line: int) -> Place | None:
        if line not in self.known:
            self.known |= {line: None, **dict(places_of(places(self.data, [line])))}
        return self.known[line]


class Stage:
    """A script and the ranks on it."""

    def __init__(self, script: str, folder: Path) -> None:
        self.path = folder / "job.py"
        self.path.write_text(script)
        self.module = ParsedSource.parse(str(self.path))

    def facts(self, *looks: Sequence[At], every_s: float = 1.0) -> Facts:
        """The facts after these looks; one look is shown four times, as of a job that stands still."""
        shown = looks if len(looks) > 1 else looks * 4
        shots = [self._shot(ranks, i * every_s) for i, ranks in enumerate(shown)]
        return derive(shots, schema())

    def _shot(self, ranks: Sequence[At], at_s: float) -> Snapshot:
        seen = tuple(self._rank(number, at, len(ranks)) for number, at in enumerate(ranks))
        host = Host("here", None, "6", 2, "a CPU", frozenset({"avx2"}))
        return Snapshot("here", at_s, "2026-01-01T00:00:00Z", seen, {"host": host}, tier="look")

    def _rank(self, rank: int, at: At, size: int) -> RankEvidence:
        pid = 100 + rank
        target = Target(pid, 1, "here", rank, rank, size, launcher="torchrun")
        threads = (
            ThreadCpu(pid, at.threads[0], at.state, 0.1, at.runs),
            *(ThreadCpu(pid + i, comm, "S", 0.1) for i, comm in enumerate(at.threads) if i > 0),
        )
        process = Process(pid, 1, 0, at.state, ("python",), None, None, 10.0, at.cpu_s, 1, threads)
        main = Stack(pid, "MainThread", self._frames(at))
        stacks = Stacks((main, *at.extra), native=bool(at.native), children=tuple(at.children))
        places: dict[str, Place] = {}
        made = [frame for _, threads in at.children for stack in threads for frame in stack.frames]
        for line in (*(line for _, line in at.calls), *(f.line or 0 for f in made if f.file == str(self.path))):
            place = self.module.place(line)
            if place is not None:
                places[f"{self.path}:{line}"] = place
        records = {"cpu": process, "stacks": stacks, "source": Source(places), "environ": Environ(at.environ)}
        return RankEvidence(target, at.alive, {**records, **at.records} if at.alive else {})

    def _frames(self, at: At) -> tuple[Frame, ...]:
        native = [Frame(symbol, "libtorch_cpu.so", None, native=True) for symbol in at.native]
        inner = [Frame(name, file, 1, variables=tuple(at.variables.get(name, ()))) for name, file in at.inner]
        own = [
            Frame(name, str(self.path), line, self.path.name, variables=tuple(at.variables.get(name, ())))
            for name, line in reversed(at.calls)
        ]
        return (*native, *inner, *own)
