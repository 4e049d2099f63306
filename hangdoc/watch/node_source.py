"""The ranks of this host: by probes of our own, or, without the right to read them, from the daemon of the node."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from hangdoc.analysis import Key
from hangdoc.evidence import Environ, RankEvidence, Snapshot, Target
from hangdoc.fleet import protocol
from hangdoc.fleet.decoder import Decoder
from hangdoc.recording import codec
from hangdoc.system import node_socket
from hangdoc.watch.sources import LocalSource
from probes import Tier

CONNECT_S = 2.0
ROUND_S = 11.0  # for an answer; the daemon gives one after 9 s, and a collector waits 12 s
FRESH_S = 3.0  # a round that found the daemon is the first one, if it is so young
RETRY_S = 30.0  # between two attempts to find a daemon
_DO = {Tier.LOOK: "look", Tier.EXAMINE: "examine"}


def _silent(text: str) -> None:
    """Nobody hears it."""


@dataclass(slots=True)
class NodeSource:
    """Ranks of this host. `own` finds and reads them; the daemon is asked if it may not, or finds none."""

    own: LocalSource
    say: Callable[[str], None] = _silent
    path: str = field(default_factory=node_socket.asked_path)
    _daemon: _Daemon | None = None
    _tried_s: float = float("-inf")
    _seen: tuple[RankEvidence, ...] = ()  # of the daemon's last answer
    _dropped: set[tuple[int, int]] = field(default_factory=set)
    _newer: Snapshot | None = None  # taken while we tried the daemon, and not given out yet

    def find(self) -> NodeSource:
        """Look for the ranks; there may be none."""
        self.own.find()
        self._choose()
        return self

    @property
    def targets(self) -> Sequence[Target]:
        return self.own.targets if self._daemon is None else tuple(rank.target for rank in self._seen)

    @property
    def starting(self) -> tuple[int, ...]:
        return self.own.starting

    @property
    def is_own(self) -> bool:
        """True while our own probes read the ranks."""
        return self._daemon is None

    @property
    def about(self) -> Mapping[Target, tuple[str, int]] | None:
        """Identity of each process as the daemon sees it; None: it is not asked. See `ProcessIds`."""
        return None if self._daemon is None else self._daemon.about

    def round(self, tier: Tier, still: Collection[Key] = ()) -> tuple[Snapshot]:
        if self._daemon is not None:
            newer, self._newer = self._newer, None
            if newer is not None and tier == Tier.LOOK and time.monotonic() - newer.at_s < FRESH_S:
                return (newer,)
            try:
                return (self._ask(self._daemon, tier, [pid for _, pid in still]),)
            except (OSError, ValueError) as error:
                self._lose(error)
        return self.own.round(tier, still)

    def rediscover(self) -> None:
        """New ranks appear with a restart or another job. The daemon finds them by itself."""
        self.own.rediscover()
        self._choose()

    def forget(self, job: str) -> None:
        self._drop({(t.pid, t.start_ticks) for t in self.targets if t.job == job})
        self.own.forget(job)

    def drop(self, pids: Collection[int]) -> None:
        """Stop watching these processes."""
        self._drop({(t.pid, t.start_ticks) for t in self.targets if t.pid in pids})
        self.own.drop(pids)

    def lost(self) -> dict[str, str]:
        return {}

    def wait(self, until_s: float) -> None:
        if self._daemon is None:
            self.own.wait(until_s)
        else:
            time.sleep(max(0.0, until_s - time.monotonic()))

    def close(self) -> None:
        """Close the connection to the daemon."""
        if self._daemon is not None:
            self._daemon.close()
            self._daemon = None

    def _choose(self) -> None:
        """Ask the daemon if our own probes see less than it does."""
        if self._daemon is not None or not self.path or time.monotonic() - self._tried_s < RETRY_S:
            return
        own = self.own.targets
        if own and all(_is_readable(target) for target in own):
            return
        self._tried_s = time.monotonic()
        found = None
        try:
            found = _Daemon.connect(self.path)
            shot = self._ask(found, Tier.LOOK)
        except (OSError, ValueError):
            shot = None
        if found is not None and shot is not None and shot.ranks:
            self._daemon, self._newer = found, shot
            self.say("hangdoc may not read these ranks itself: it asks the daemon of this node")
        elif found is not None:
            found.close()

    def _ask(self, daemon: _Daemon, tier: Tier, still: Sequence[int] = ()) -> Snapshot:
        shot = daemon.round(self.own.sampler.host, tier, still)
        wanted = self._wanted()
        ranks = tuple(
            rank
            for rank in shot.ranks
            if (wanted is None or _process(rank) in wanted)
            and _process(rank) not in self._dropped
            and rank.target.pid not in self.own.skip
            and _slurm_job(rank) in (None, self.own.slurm or _slurm_job(rank))
        )
        self._seen = ranks
        pids = {rank.target.pid for rank in ranks}
        unseen = tuple(lack for lack in shot.unseen if lack.pid is None or lack.pid in pids)
        return Snapshot(shot.host, shot.at_s, shot.time, ranks, shot.records, unseen, shot.tier)

    def _wanted(self) -> set[tuple[int, int]] | None:
        """The processes that the user has selected; None: all."""
        return {(t.pid, t.start_ticks) for t in self.own.targets} if self.own.pids else None

    def _drop(self, processes: set[tuple[int, int]]) -> None:
        self._dropped |= processes
        self._seen = tuple(rank for rank in self._seen if _process(rank) not in processes)

    def _lose(self, error: Exception) -> None:
        """The daemon has ended or does not answer: go on with probes of our own."""
        self.say(f"the daemon of this node does not answer ({error}): hangdoc goes on with what it may read itself")
        self.close()
        self.own.rediscover()
        self.own.sampler.targets = tuple(
            target for target in self.own.targets if (target.pid, target.start_ticks) not in self._dropped
        )


@dataclass(slots=True)
class _Daemon:
    """A connection to the daemon of this node. Its methods raise OSError or ValueError once it is of no use."""

    peer: socket.socket
    about: Mapping[Target, tuple[str, int]] = field(default_factory=dict)
    _decoder: Decoder = field(default_factory=lambda: Decoder({**codec.registry().rank, **codec.registry().host}))
    _rest: bytearray = field(default_factory=bytearray)
    _asked: int = 0
    _newest_s: float | None = None  # when its last round was taken

    @classmethod
    def connect(cls, path: str) -> _Daemon:
        daemon = cls(node_socket.connect(path, CONNECT_S))
        try:
            hello = protocol.parse(daemon._line(time.monotonic() + CONNECT_S), protocol.Hello)
            if hello.schema != protocol.SCHEMA:
                raise ValueError(f"its protocol is {hello.schema[:40]}")
        except (OSError, ValueError):
            daemon.close()
            raise
        return daemon

    def round(self, host: str, tier: Tier, still: Sequence[int]) -> Snapshot:
        self._asked += 1
        own = {"": protocol.HostArguments(still=tuple(still))} if still else {}
        self.peer.settimeout(CONNECT_S)
        self.peer.sendall(protocol.line(protocol.Command(_DO[tier], self._asked, own)))
        answer = protocol.parse(self._line(time.monotonic() + ROUND_S), protocol.Answer)
        if answer.to != self._asked:
            raise ValueError("an answer without a question")
        shot = self._decoder.snapshot(host, answer)
        if shot.ranks and shot.at_s == self._newest_s:
            raise ValueError("it takes no rounds")
        self._newest_s = shot.at_s
        self.about = {
            rank.target: (entry.process, entry.near) for rank, entry in zip(shot.ranks, answer.ranks, strict=True)
        }
        return shot

    def close(self) -> None:
        with suppress(OSError):
            self.peer.close()

    def _line(self, until_s: float) -> bytes:
        """The next line. Raises OSError if there is none in time, ValueError if it is too long."""
        searched = 0
        while (end := self._rest.find(b"\n", searched)) < 0:
            searched = len(self._rest)
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("no answer in time")
            if searched > protocol.MAX_LINE:
                raise ValueError("a line that is too large")
            self.peer.settimeout(left_s)
            piece = self.peer.recv(1 << 18)
            if not piece:
                raise ConnectionError("it has closed the connection")
            self._rest += piece
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return line


def _is_readable(target: Target) -> bool:
    """True if we may read the memory of the process: the kernel asks for the right of ptrace(2) when it is opened."""
    try:
        os.close(os.open(f"/proc/{target.pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
    except FileNotFoundError:
        return True  # it has ended, or was missing from the start
    except OSError:
        return False
    return True


def _process(rank: RankEvidence) -> tuple[int, int]:
    return rank.target.pid, rank.target.start_ticks


def _slurm_job(rank: RankEvidence) -> str | None:
    environ = rank.records.get("environ")
    return environ.variables.get("SLURM_JOB_ID") if isinstance(environ, Environ) else None
