"""A large job made from a small recorded one: its ranks are replicated over many hosts, each with its own numbers.

Hosts, PIDs, thread ids, ranks, addresses in memory and on the network, clocks and CPU times are another on each; where
a rank stands, in what, and how often it was looked at is as it was recorded. Each rank is connected to the next and
the one before, in a ring.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from hangdoc.evidence import (
    Connection,
    Environ,
    Frame,
    Process,
    ProcessGroup,
    ProcessGroups,
    RankEvidence,
    Snapshot,
    Sockets,
    Stack,
    Stacks,
    Target,
    ThreadCpu,
    Variable,
)
from hangdoc.evidence.memory import share
from hangdoc.fleet import protocol
from hangdoc.fleet.decoder import Decoder
from hangdoc.fleet.encoder import ADDRESS, Encoder
from hangdoc.recording import codec

PER_HOST = 8
OUT, IN = 30000, 40000  # local ports of a rank's two connections
RANK_NAMES = frozenset({"rank", "global_rank", "RANK"})
CONSTANTS = frozenset({"int", "bool", "float", "none"})  # objects whose address says nothing
WORLD_NAMES = frozenset({"world_size", "WORLD_SIZE", "world"})


@dataclass(frozen=True, slots=True)
class Replica:
    """One synthetic rank."""

    rank: int
    world: int

    @property
    def host(self) -> str:
        return f"node{self.rank // PER_HOST:05d}"

    @property
    def local(self) -> int:
        return self.rank % PER_HOST

    @property
    def address(self) -> str:
        number = self.rank // PER_HOST
        return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"

    @property
    def pid(self) -> int:
        return 1000 + 500 * self.local + self.rank // PER_HOST % 97

    @property
    def shift(self) -> int:
        """By how much objects lie elsewhere in its memory."""
        return 4096 * (self.rank % 8191)

    @property
    def cpu_s(self) -> float:
        """By how much more CPU time it has used since it started."""
        return self.rank % 101 / 64

    def beside(self, by: int) -> Replica:
        return Replica((self.rank + by) % self.world, self.world)


def replicate(history: Sequence[Snapshot], world: int, odd: Mapping[int, int]) -> list[Snapshot]:
    """The same rounds of `world` ranks, one snapshot a host and round, rounds in order.

    `odd`: of which recorded rank a synthetic one is made; the others are made, in turn, of the recorded ranks that
    none of these is made of.
    """
    history = alike(history)
    models = [{rank.target.rank or 0: rank for rank in shot.ranks} for shot in history]
    usual = sorted(set(models[0]) - set(odd.values()))
    members = tuple(range(world))
    shots: list[list[Snapshot]] = [[] for _ in history]
    for first in range(0, world, PER_HOST):
        there = [Replica(n, world) for n in range(first, min(world, first + PER_HOST))]
        makers = [Maker(replica, members) for replica in there]
        chosen = [odd.get(replica.rank, usual[replica.rank % len(usual)]) for replica in there]
        behind_s = 1e4 * (first % 977)  # each host's clock begins elsewhere
        for number, shot in enumerate(history):
            ranks = tuple(make(models[number][model]) for make, model in zip(makers, chosen, strict=True))
            shots[number].append(replace(shot, host=there[0].host, at_s=shot.at_s + behind_s, ranks=ranks, unseen=()))
    return [shot for every in shots for shot in every]


def collected(history: Sequence[Snapshot]) -> list[Snapshot]:
    """The same as a fleet's collector has it: taken apart by each host's agent, put together by its reader."""
    registry = codec.registry()
    kinds: Mapping[str, type] = {**registry.rank, **registry.host}
    models: dict[str, Any] = {}
    agents: dict[str, tuple[Encoder, Decoder]] = {}
    found = []
    for shot in history:
        writer, reader = agents.setdefault(shot.host, (Encoder(), Decoder(kinds, models)))
        line = protocol.line(writer.answer(1, shot, {}))
        found.append(reader.snapshot(shot.host, protocol.parse(line, protocol.Answer)))
    return found


def alike(history: Sequence[Snapshot]) -> list[Snapshot]:
    """What one look sees and the look before saw, once: as a sampler keeps it, and no recording does."""
    kept: list[Snapshot] = list(history[:1])
    for shot in history[1:]:
        before = {rank.target.pid: rank.records for rank in kept[-1].ranks}
        ranks = tuple(
            replace(
                rank, records={n: share(r, before.get(rank.target.pid, {}).get(n)) for n, r in rank.records.items()}
            )
            for rank in shot.ranks
        )
        kept.append(replace(shot, ranks=ranks))
    return kept


class Maker:
    """Makes one synthetic rank's evidence of a recorded one's; what was shared between looks stays so."""

    def __init__(self, replica: Replica, members: tuple[int, ...]) -> None:
        self.replica, self.members = replica, members
        self.made: dict[int, tuple[Any, Any]] = {}  # by identity: the recorded, and what became of it
        self.tids: dict[int, int] = {}
        self.model: Target | None = None
        self.kinds: Mapping[type, Callable[[Any], Any]] = {
            Process: self._process,
            Environ: self._environ,
            ProcessGroups: self._groups,
            Stacks: self._stacks,
            Sockets: self._sockets,
        }

    def __call__(self, evidence: RankEvidence) -> RankEvidence:
        self.model = evidence.target
        self.tids.setdefault(evidence.target.pid, self.replica.pid)
        target = replace(
            evidence.target,
            pid=self.replica.pid,
            host=self.replica.host,
            rank=self.replica.rank,
            local_rank=self.replica.local,
            world_size=self.replica.world,
            launcher_pid=999,
            master=f"{Replica(0, 1).host}:{self._port()}",
        )
        records = {name: self._of(record) for name, record in evidence.records.items()}
        return replace(evidence, target=target, records=records)

    def _of(self, record: Any) -> Any:
        kind = self.kinds.get(type(record))
        if kind is None:
            return record
        if id(record) not in self.made:
            self.made[id(record)] = record, kind(record)
        return self.made[id(record)][1]

    def _port(self) -> int:
        """Of the store."""
        return int((self.model.master or "").rpartition(":")[2] or 0) if self.model else 0

    def _tid(self, tid: int) -> int:
        return self.tids.setdefault(tid, self.replica.pid + len(self.tids))

    def _process(self, record: Process) -> Process:
        return replace(
            record,
            pid=self.replica.pid,
            ppid=999,
            cpu_s=record.cpu_s + self.replica.cpu_s,
            age_s=record.age_s + self.replica.cpu_s,
            rss_bytes=record.rss_bytes + self.replica.shift,
            threads=tuple(map(self._thread, record.threads)),
        )

    def _thread(self, record: ThreadCpu) -> ThreadCpu:
        return replace(
            record,
            tid=self._tid(record.tid),
            cpu_s=record.cpu_s + self.replica.cpu_s / 4,
            voluntary=(record.voluntary or 0) + self.replica.rank % 89,
        )

    def _environ(self, record: Environ) -> Environ:
        mine = {
            "RANK": self.replica.rank,
            "LOCAL_RANK": self.replica.local,
            "ROLE_RANK": self.replica.rank,
            "GROUP_RANK": self.replica.rank // PER_HOST,
            "WORLD_SIZE": self.replica.world,
            "ROLE_WORLD_SIZE": self.replica.world,
            "LOCAL_WORLD_SIZE": min(self.replica.world, PER_HOST),
            "GROUP_WORLD_SIZE": -(-self.replica.world // PER_HOST),
        }
        told = {name: str(value) for name, value in mine.items() if name in record.variables}
        return Environ({**record.variables, **told})

    def _groups(self, record: ProcessGroups) -> ProcessGroups:
        """All the ranks are in the one group; a recorded group of fewer ranks has no counterpart."""
        whole = [self._group(group) for group in record.groups if group.default]
        return replace(
            record,
            groups=tuple(whole),
            rank=self.replica.rank,
            world_size=self.replica.world,
            local_rank=self.replica.local,
        )

    def _group(self, group: ProcessGroup) -> ProcessGroup:
        return replace(group, address=group.address + self.replica.shift, ranks=self.members)

    def _stacks(self, record: Stacks) -> Stacks:
        told = record.globals
        return replace(
            record,
            threads=tuple(map(self._stack, record.threads)),
            globals=None if told is None else tuple(map(self._variable, told)),
        )

    def _stack(self, stack: Stack) -> Stack:
        return replace(stack, tid=self._tid(stack.tid), frames=tuple(map(self._frame, stack.frames)))

    def _frame(self, frame: Frame) -> Frame:
        if not frame.variables:
            return frame
        if id(frame) not in self.made:
            variables = tuple(map(self._variable, frame.variables))
            same = all(a is b for a, b in zip(variables, frame.variables, strict=True))
            self.made[id(frame)] = frame, frame if same else replace(frame, variables=variables)
        made: Frame = self.made[id(frame)][1]
        return made

    def _variable(self, variable: Variable) -> Variable:
        number, text = variable.number, variable.text
        model = self.model
        if variable.name in RANK_NAMES and model and number == model.rank:
            number, text = float(self.replica.rank), str(self.replica.rank)
        elif variable.name in WORLD_NAMES and model and number == model.world_size:
            number, text = float(self.replica.world), str(self.replica.world)
        elif variable.kind in CONSTANTS or variable.address is None:
            return variable
        text = ADDRESS.sub(lambda found: f"{int(found[0], 16) + self.replica.shift:x}", text)
        return replace(variable, number=number, text=text, address=(variable.address or 0) + self.replica.shift)

    def _sockets(self, record: Sockets) -> Sockets:
        assert self.model is not None
        data = [one for one in record.connections if one.peer_pid is not None]
        store = [one for one in record.connections if self._port() in (one.local_port, one.remote_port)]
        ring = [self._data(one, into) for one, into in zip((*data[:2], *data[:1])[:2], (False, True), strict=False)]
        to_store = [replace(one, local=self.replica.address, remote=Replica(0, 1).address) for one in store]
        return Sockets((*ring, *to_store), record.namespace)

    def _data(self, one: Connection, into: bool) -> Connection:
        """Its connection to the next rank, or `into` it from the one before."""
        mine, other = self.replica, self.replica.beside(-1 if into else 1)
        ports = (IN + mine.local, OUT + other.local) if into else (OUT + mine.local, IN + other.local)
        return replace(
            one,
            local=mine.address,
            local_port=ports[0],
            remote=other.address,
            remote_port=ports[1],
            peer_pid=other.pid if other.host == mine.host else None,
            interface="eth0",
            inode=1_000_000 + 2 * mine.rank + into,
        )
