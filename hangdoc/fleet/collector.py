"""The ranks of many hosts: an agent on each, a snapshot a host and round. What is lost is said, the rest is judged."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from hangdoc import __version__
from hangdoc.analysis import Key
from hangdoc.evidence import AGENT, RankEvidence, Snapshot, Target, Unseen
from hangdoc.evidence.memory import collect_rarely, trim_heap
from hangdoc.fleet import protocol
from hangdoc.fleet.agent_presence import ISSUED
from hangdoc.fleet.clush import Carrier, Event
from hangdoc.fleet.decoder import Reader
from hangdoc.fleet.merge import Owners, Part, corroborated, jobs
from hangdoc.fleet.transports import FleetOptions, hosts_of, way_of
from hangdoc.formatting import fold_hosts, name_ranks
from hangdoc.recording import codec
from hangdoc.redaction.text import redact_text
from probes import Tier


@dataclass(slots=True)
class Host:
    """Instants are the collector's."""

    name: str
    reader: Reader
    asked: int | None = None  # the command it has not answered yet
    put_s: float | None = None  # when that was put to it; None: not yet
    patience_s: float = 0.0  # how long the answer to it may take
    started: bool = False
    heard_s: float | None = None  # when it wrote a line last
    open_s: float | None = None  # when the first question was put that it has not answered, with anything
    question_s: float = 0.0  # when a question was put last
    shot: Snapshot | None = None  # the newest
    about: Mapping[Target, tuple[str, int]] = field(default_factory=dict)  # which process a rank in it is, how near
    named: dict[Target, Target] = field(default_factory=dict)  # as the agent names it -> as the fleet does
    news: bool = False  # since the last round
    lost: str | None = None  # why
    ended_s: float | None = None  # when its agent ended
    tries: int = 0
    version: str | None = None
    token: str = ""  # of its agent
    boot: str | None = None  # boot ID of its kernel, as its agent said first; None: it has not
    claims: dict[Target, str] = field(default_factory=dict)  # ranks that are not judged, and why
    peers: tuple[str, ...] = ()  # hosts: it was asked whether their agents run there as well
    stopped: bool = False  # it broke the rules and is ended: what it still writes is not heard
    barred: bool = False  # it flooded us: its agent is not started anew

    def question(self) -> None:
        self.question_s = time.monotonic()
        if self.started and self.open_s is None:
            self.open_s = self.question_s

    def put(self, patience_s: float) -> None:
        """The command is on its way."""
        self.question()
        self.put_s, self.patience_s = self.question_s, patience_s

    def free(self) -> None:
        """No command is open."""
        self.asked = self.put_s = None

    def late(self) -> bool:
        """It says that it is there, and the answer does not come: a probe takes long, or hangs."""
        return self.put_s is not None and time.monotonic() - self.put_s >= self.patience_s

    def silent_s(self) -> float:
        return 0.0 if self.open_s is None else time.monotonic() - self.open_s


PING_S = 0.75  # a host not heard of for so long is asked whether it is there
SILENT_S = 3.5  # one that has not answered anything for so long is lost
START_S = 4.5  # the same for an agent that was started
PEERS_S = 2.0  # for a host to say which agents it shows
PATIENCE_S = 4.0  # a round waits no longer for those that are there and slow
EXAMINE_S = 12.0  # the same where native stacks are wanted, which take a while each
AT_ONCE = 128  # hosts that are asked and have not answered: what all say at once takes much room
FLEET = "fleet"  # the probe named in `Unseen` where agents contradict one another
RETRY_S = (5.0, 10.0, 20.0, 60.0)  # after which an agent that ended is started anew


def started(wish: FleetOptions, say: Callable[[str], None], ask: Collection[str] = ()) -> Fleet:
    """The fleet that the user means, its agents on their way; `ask`: what they may send. Raises HangdocError."""
    hosts, way = hosts_of(wish), way_of(wish)
    collect_rarely()
    say(f"starting agents on {len(hosts)} host{'s' * (len(hosts) != 1)} by {wish.via}")
    return Fleet(hosts, Carrier(way), say, ask=tuple(ask))


@dataclass(slots=True)
class Fleet:
    """A source of snapshots: agents on hosts. To be closed."""

    hosts: Sequence[str]
    carrier: Carrier
    say: Callable[[str], None]
    again: bool = True  # start agents anew that have ended
    ask: tuple[str, ...] = ()  # what the agents' probes may send
    _hosts: dict[str, Host] = field(default_factory=dict)
    _owners: Owners = field(init=False)
    _kinds: Mapping[str, type] = field(init=False)
    _models: dict[str, Any] = field(default_factory=dict)  # what all hosts' readers share
    _to_ask: deque[tuple[list[Host], protocol.Command]] = field(default_factory=deque)
    _open: dict[str, int] = field(default_factory=dict)  # hosts that have not answered -> the round of it
    _checked_s: float = 0.0  # when it was last looked who is silent
    _patience_s: float = 0.0
    _until_s: float = 0.0  # a round waits for answers
    _round: int = 0
    _fresh: bool = False
    _forgotten: set[tuple[str, int, int]] = field(default_factory=set)
    _targets: tuple[Target, ...] = ()
    _members: set[tuple[str, int, int, int | None]] = field(default_factory=set)  # processes, and their ranks
    _news: dict[str, list[str]] = field(default_factory=dict)  # what became of hosts, not said yet

    def __post_init__(self) -> None:
        registry = codec.registry()
        self._kinds = {**registry.rank, **registry.host}
        self._owners = Owners({host: at for at, host in enumerate(self.hosts)})
        self._hosts = {host: Host(host, Reader(self._kinds, self._models)) for host in self.hosts}
        self.carrier.start(list(self.hosts))

    # --- the source -------------------------------------------------------------------------------

    @property
    def targets(self) -> Sequence[Target]:
        return self._targets

    def round(self, tier: Tier, still: Collection[Key] = ()) -> tuple[Snapshot, ...]:
        """Ask every host that is not busy with an earlier question; who does not answer in time is lost."""
        self._round += 1
        self._revive()
        self._patience_s = EXAMINE_S if still else PATIENCE_S if self._round > 1 else START_S
        self._ask(tier, still)
        while (left_s := self._until_s - time.monotonic()) > 0 and self._awaited():
            self._hark(left_s)
        for host in self._live():
            self._owners.note(host.name, {t: about for t, about in host.about.items() if t not in host.claims})
        self._introduce()
        shots = self._snapshots()
        trim_heap()
        return shots

    def rediscover(self) -> None:
        self._fresh = True

    def forget(self, job: str) -> None:
        self._forgotten |= {(t.host, t.pid, t.start_ticks) for t in self._targets if t.job == job}

    def wait(self, until_s: float) -> None:
        while (left_s := until_s - time.monotonic()) > 0:
            lost = len(self.lost())
            self._hark(left_s)
            if len(self.lost()) > lost:
                return

    def close(self) -> None:
        self.carrier.close()

    def lost(self) -> dict[str, str]:
        """The hosts that are not seen now, and why."""
        return {host.name: host.lost for host in self._hosts.values() if host.lost is not None}

    def pending(self) -> bool:
        """Whether a host has not answered yet, and may."""
        return any(host.shot is None and host.lost is None for host in self._hosts.values())

    def blind(self) -> dict[str, str]:
        """The hosts whose agents saw no rank and say why they may have missed some."""
        seen = ((host.name, host.shot) for host in self._live() if host.shot and not host.shot.ranks)
        return {name: lack.why for name, shot in seen for lack in shot.unseen if lack.probe == "discover"}

    # --- asking and hearing -----------------------------------------------------------------------

    def _revive(self) -> None:
        now_s = time.monotonic()
        for host in self._hosts.values():
            pause_s = RETRY_S[min(host.tries, len(RETRY_S) - 1)]
            if self.again and not host.barred and host.ended_s is not None and now_s - host.ended_s >= pause_s:
                why = host.lost
                self._owners.forget(host.name)
                host = Host(host.name, Reader(self._kinds, self._models), lost=why, tries=host.tries + 1)
                self._hosts[host.name] = host
                self.carrier.start([host.name])

    def _ask(self, tier: Tier, still: Collection[Key]) -> None:
        """Prepare a question for every host that is not busy, and put the first of them."""
        skipped = self._owners.skipped()
        do = "look" if tier < Tier.EXAMINE else "examine" if still else "inspect"
        shared: list[Host] = []
        own: dict[str, protocol.Own] = {}
        for host in self._hosts.values():
            if host.asked is None and host.ended_s is None and not host.barred:
                pids = tuple(pid for name, pid in still if name == host.name)
                over = tuple(pid for name, pid, _ in self._forgotten if name == host.name)
                mine = protocol.Own(pids, skipped.get(host.name, ()), over)
                host.asked = self._round
                if self.carrier.shares(host.name):
                    shared.append(host)
                    own |= {host.token: mine} if mine != protocol.Own() and host.token else {}
                else:
                    told = {"": mine} if mine != protocol.Own() else {}
                    self._to_ask.append(([host], protocol.Command(do, self._round, told, self._fresh, self.ask)))
        if shared:
            self._to_ask.append((shared, protocol.Command(do, self._round, own, self._fresh, self.ask)))
        self._fresh = False
        self._put()

    def _introduce(self) -> None:
        """Ask hosts whose processes others claim whether they show the agents of these: once, as it takes a round trip.

        An agent without a token of its own cannot be shown by anybody.
        """
        tokens = Counter(host.token for host in self._hosts.values() if host.token)
        live = {host.name for host in self._live()}
        for name, others in self._owners.others().items():
            if name not in live:
                continue
            host = self._hosts[name]
            fresh = [other for other in others & live if (name, other) not in self._owners.shows]
            self._owners.shows |= {(name, other): False for other in fresh}
            if host.boot:  # else it is older than the question
                host.peers = tuple(other for other in fresh if tokens[self._hosts[other].token] == 1)
            if host.peers:
                asked = protocol.Own(peers=tuple(self._hosts[other].token for other in host.peers))
                self.carrier.send(name, protocol.line(protocol.Command("peers", own={host.token: asked})))
        until_s = time.monotonic() + PEERS_S
        while (left_s := until_s - time.monotonic()) > 0 and any(host.peers for host in self._hosts.values()):
            self._hark(left_s)
        for host in self._hosts.values():
            host.peers = ()

    def _put(self) -> None:
        """Put as many questions as may be open at once."""
        while self._to_ask and len(self._open) < AT_ONCE:
            hosts, command = self._to_ask.popleft()
            asked = [host for host in hosts if host.asked is not None]  # the others have ended meanwhile
            for host in asked:
                if host.lost is None:
                    self._open[host.name] = self._round
                host.put(self._patience_s)
            if asked:
                self._until_s = time.monotonic() + self._patience_s
                self.carrier.send(asked[0].name, protocol.line(command))

    def _awaited(self) -> bool:
        return bool(self._to_ask) or self._round in self._open.values()

    def _check(self) -> None:
        """Ask those that are silent whether they are there; those that do not say so are lost."""
        now_s, heard_by_all = time.monotonic(), False
        self._checked_s = now_s
        for host in self._hosts.values():
            if host.ended_s is not None:
                continue
            limit_s = START_S if host.heard_s is None else SILENT_S
            if host.silent_s() >= limit_s and host.lost is None:
                what = "has not answered" if host.heard_s is None else "is silent"
                self._lost(host, f"the agent {what} for {limit_s:g} s")
            elif host.late() and host.lost is None:
                self._lost(host, f"the agent is there and has not answered for {host.patience_s:g} s")
            elif host.heard_s and host.lost is None and now_s - max(host.heard_s, host.question_s) >= PING_S:
                host.question()
                shared = self.carrier.shares(host.name)
                if not (shared and heard_by_all):
                    self.carrier.send(host.name, protocol.PING)
                heard_by_all |= shared

    def _hark(self, seconds: float) -> None:
        """Wait for news for so long, or less, and take all there is."""
        event = self.carrier.next(min(seconds, PING_S / 4))
        while event is not None:
            self._handle(event)
            self._put()
            event = self.carrier.next(0.0)
        if time.monotonic() - self._checked_s >= PING_S / 4:
            self._check()
            self._put()
        self._tell()

    def _handle(self, event: Event) -> None:
        host = self._hosts[event.host]
        if event.kind == "flooded":
            host.stopped = host.barred = True
            self._lost(host, event.text.decode())
        elif event.kind == "started":
            host.started, host.open_s = True, time.monotonic()  # it could not answer before
        elif event.kind == "ended":
            host.ended_s, host.open_s = time.monotonic(), None
            host.free()
            said = redact_text(event.text.decode(errors="replace"))[:300]
            why = host.lost if host.barred else said or host.lost
            self._lost(host, why or "the agent was cut off")
        elif not host.stopped:
            host.heard_s, host.open_s = time.monotonic(), None
            try:
                self._hear(host, event.text)
            except ValueError as error:
                self._lost(
                    host, f"what the agent writes cannot be read ({str(error)[:200]}); hangdoc there is another?"
                )
                host.stopped = True
                self.carrier.stop(host.name)

    def _hear(self, host: Host, text: bytes) -> None:
        if text.startswith(b'{"schema"'):
            hello = protocol.parse(text, protocol.Hello)
            if host.boot is not None:
                raise ValueError("it introduces itself twice")
            if hello.schema != protocol.SCHEMA:
                raise ValueError(f"it speaks {hello.schema[:40]}")
            if hello.hangdoc not in (host.version, __version__):
                self.say(f"{host.name} has hangdoc {hello.hangdoc[:20]}, here is {__version__}")
            host.version, host.boot = hello.hangdoc[:20], hello.boot
            host.token = hello.token if ISSUED.fullmatch(hello.token) else ""
            host.put_s = None if host.put_s is None else time.monotonic()  # it could not answer before
            return
        if text.startswith(b'{"to"'):
            answer = protocol.parse(text, protocol.Answer)
            if answer.to != host.asked:
                raise ValueError("an answer that nobody asked for")
            host.shot, host.news = host.reader.snapshot(host.name, answer), True
            host.free()
            self._open.pop(host.name, None)
            host.about = {
                rank.target: (one.process or f"{host.boot} {host.name} {rank.target.pid}", one.near)
                for rank, one in zip(host.shot.ranks, answer.ranks, strict=True)
            }
            host.claims = {
                target: "its agent claims that it runs on another kernel than the agent itself"
                for target, (process, _) in host.about.items()
                if host.boot and process.partition(" ")[0] != host.boot
            }
        elif text.startswith(b'{"peers"'):
            shown = protocol.parse(text, protocol.Peers).peers
            self._owners.shows |= {(host.name, other): self._hosts[other].token in shown for other in host.peers}
            host.peers = ()
            return
        elif not text.startswith(b'{"pong"') or host.late():
            return  # what the host's shell greets with; or it was lost for another reason than its silence
        if host.lost is not None:
            host.lost, host.tries = None, 0
            if host.asked is not None:
                self._open[host.name] = host.asked
            self._news.setdefault("back", []).append(host.name)

    def _lost(self, host: Host, why: str) -> None:
        why = redact_text(why)  # what a command said last
        if host.lost is None:
            self._news.setdefault(f"not seen: {why}", []).append(host.name)
        host.lost = why
        self._open.pop(host.name, None)

    def _tell(self) -> None:
        """Say which hosts were lost and came back since; those of one fate in one line."""
        for fate, names in self._news.items():
            self.say(f"{fold_hosts(names)} {'is' if len(names) == 1 else 'are'} {fate}")
        self._news.clear()

    # --- what they saw ----------------------------------------------------------------------------

    def _snapshots(self) -> tuple[Snapshot, ...]:
        """A snapshot of each host that has answered, in the names of the fleet; of one that is lost why."""
        live = self._live()
        seen = {process for host in live for process, _ in host.about.values()}
        self._owners.keep({host.name for host in live}, seen)
        away = self._owners.skipped()
        owned = {host.name: self._owned(host) for host in live}
        names, apart = jobs(self._claiming(owned), lambda parts: self._trust(owned, parts))
        self._members = {
            _process(name, rank.target)
            for name, ranks in owned.items()
            for rank in ranks
            if (name, rank.target.job) not in apart
        }
        doubts = self._doubts(live, owned, apart)
        shots = [
            self._renamed(host, owned[host.name], names, away.get(host.name, ()), doubts.get(host.name, ()))
            for host in live
            if host.news
        ]
        late = {host.name: away.get(host.name, ()) for host in live if not host.news}
        self._targets = (
            *(target for target in self._targets if target.pid not in late.get(target.host, (target.pid,))),
            *(rank.target for shot in shots for rank in shot.ranks),
        )
        for host in live:
            host.news = False
        self._forgotten &= {(host.name, target.pid, target.start_ticks) for host in live for target in host.about}
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        shots += [Snapshot(name, 0.0, now, (), elsewhere=pids) for name, pids in late.items() if pids]
        return (*shots, *(_nothing(name, why, now) for name, why in self.lost().items()))

    def _live(self) -> list[Host]:
        return [host for host in self._hosts.values() if host.shot and host.lost is None]

    def _owned(self, host: Host) -> list[RankEvidence]:
        """What the host's agent answers for."""
        return [
            rank
            for rank in (host.shot.ranks if host.shot else ())
            if (host.name, rank.target.pid, rank.target.start_ticks) not in self._forgotten
            and rank.target not in host.claims
            and self._owners.owner(host.about[rank.target][0], host.name) == host.name
        ]

    def _claiming(self, owned: Mapping[str, Sequence[RankEvidence]]) -> Iterator[Target]:
        """The targets under the names of their hosts. One that was in its job and ended has left its rank: after a
        restart another host may have it."""
        for name, ranks in owned.items():
            for rank in ranks:
                left = rank.alive is False and _process(name, rank.target) in self._members
                yield replace(rank.target, host=name, rank=None if left else rank.target.rank)

    def _trust(
        self, owned: Mapping[str, Sequence[RankEvidence]], parts: Sequence[Part]
    ) -> dict[Part, tuple[int, bool, int]]:
        """Of parts that claim the same: what other hosts show of them, whether they were in the job before, ranks."""
        shown = corroborated(owned, parts)
        before = {(target.host, target.job) for target in self._targets}
        sizes = Counter((host, rank.target.job) for host, ranks in owned.items() for rank in ranks)
        return {part: (shown[part], part in before, sizes[part]) for part in parts}

    def _doubts(
        self,
        live: Sequence[Host],
        owned: Mapping[str, Sequence[RankEvidence]],
        apart: Mapping[Part, Part],
    ) -> dict[str, list[Unseen]]:
        """By host what its agent claims and another one as well, or cannot know."""
        found: dict[str, list[Unseen]] = {}
        for host in live:
            for why in dict.fromkeys(host.claims.values()):
                ranks = [target.rank for target in host.claims if target.rank is not None]
                told = f"{name_ranks(ranks)} of {host.name} {'is' if len(ranks) == 1 else 'are'} not judged: {why}"
                found.setdefault(host.name, []).append(Unseen(FLEET, told, host=host.name))
        for name, pids in self._owners.contradictions().items():
            for pid, other in pids.items():
                why = f"{other} claims this process too, and {name} does not show the agent of {other}: both are kept"
                found.setdefault(name, []).append(Unseen(FLEET, why, pid=pid, host=name))
        for mine, theirs in apart.items():
            for part, why in (
                (mine, f"{theirs[0]} has the same ranks of this job: what {mine[0]} shows of them is judged by itself"),
                (theirs, f"{mine[0]} claims the same ranks of this job: what it shows of them is judged by itself"),
            ):
                pid = next(rank.target.pid for rank in owned[part[0]] if rank.target.job == part[1])
                found.setdefault(part[0], []).append(Unseen(FLEET, why, pid=pid, host=part[0]))
        return found

    def _renamed(
        self,
        host: Host,
        ranks: Sequence[RankEvidence],
        names: Mapping[Part, str],
        away: tuple[int, ...],
        doubts: Sequence[Unseen],
    ) -> Snapshot:
        """The newest snapshot, host and jobs called as the fleet calls them; a target that stays is the same object."""
        before, host.named = host.named, {}
        for target in (rank.target for rank in ranks):
            job = names[host.name, target.job]
            known = before.get(target)
            host.named[target] = known if known and known.job == job else replace(target, host=host.name, job=job)
        assert host.shot is not None
        told = tuple(replace(rank, target=host.named[rank.target]) for rank in ranks)
        unseen = tuple(replace(lack, host=host.name) for lack in host.shot.unseen)
        return replace(host.shot, ranks=told, unseen=(*unseen, *doubts), elsewhere=away)


def _process(host: str, target: Target) -> tuple[str, int, int, int | None]:
    return host, target.pid, target.start_ticks, target.rank


def _nothing(host: str, why: str, now: str) -> Snapshot:
    return Snapshot(host, 0.0, now, (), unseen=(Unseen(AGENT, why, host=host),))
