"""The collector: a source of snapshots from agents on many hosts, one snapshot per host and round.

Lost hosts are reported; the job is judged by the rest.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from msgspec.structs import replace

from hangdoc import __version__
from hangdoc.analysis import Key
from hangdoc.evidence import AGENT, RankEvidence, Snapshot, Target, Unseen
from hangdoc.evidence.memory import collect_rarely, trim_heap
from hangdoc.fleet import protocol
from hangdoc.fleet.agent_presence import ISSUED
from hangdoc.fleet.clush import AgentEvent, AgentPool
from hangdoc.fleet.decoder import Decoder
from hangdoc.fleet.merge import Part, ProcessOwners, corroborated, merge_jobs
from hangdoc.fleet.transports import FleetOptions, hosts_of, transport_of
from hangdoc.formatting import fold_hosts, name_ranks
from hangdoc.recording import codec
from hangdoc.redaction.text import redact_text
from probes import Tier


@dataclass(slots=True)
class Host:
    """One host of a fleet. Instants are the collector's."""

    name: str
    decoder: Decoder
    asked: int | None = None  # ID of the open command
    answered: int = 0  # ID of the last command that it answered
    sent_s: float | None = None  # when it was sent; None: not yet
    patience_s: float = 0.0  # time allowed for its answer
    started: bool = False
    heard_s: float | None = None  # when its last line arrived
    open_s: float | None = None  # when the first unanswered question was sent
    question_s: float = 0.0  # when the last question was sent
    shot: Snapshot | None = None  # the newest snapshot
    about: Mapping[Target, tuple[str, int]] = field(
        default_factory=dict
    )  # process and nearness of each rank, see `RankEntry`
    named: dict[Target, Target] = field(default_factory=dict)  # the agent's target -> the fleet's target
    news: bool = False  # it answered since the last round
    lost: str | None = None  # why
    ended_s: float | None = None  # when its agent ended
    tries: int = 0
    version: str | None = None
    token: str = ""  # of its agent
    boot: str | None = None  # boot ID from its agent's hello; None: no hello yet
    claims: dict[Target, str] = field(default_factory=dict)  # ranks that are not judged, with the reason
    peers: tuple[str, ...] = ()  # hosts: it was asked whether it shows their agents
    stopped: bool = False  # it broke the protocol: its output is ignored
    barred: bool = False  # it flooded us: its agent is not restarted

    def mark_question(self) -> None:
        self.question_s = time.monotonic()
        if self.started and self.open_s is None:
            self.open_s = self.question_s

    def mark_sent(self, patience_s: float) -> None:
        """The command was sent."""
        self.mark_question()
        self.sent_s, self.patience_s = self.question_s, patience_s

    def free(self) -> None:
        """No command is open any more."""
        self.asked = self.sent_s = None

    def late(self) -> bool:
        """True if the host is up, but its answer is overdue: a probe is slow or hangs."""
        return self.sent_s is not None and time.monotonic() - self.sent_s >= self.patience_s

    def silent_s(self) -> float:
        return 0.0 if self.open_s is None else time.monotonic() - self.open_s


PING_S = 0.75  # a host silent for this long is pinged
SILENT_S = 3.5  # a host without any response for this long is lost
START_S = 4.5  # the same, while its agent starts
HELLO_S = 10.0  # for a first sign of life if nothing else can be watched: Python starts slowly on a busy host
FIRST_S = 60.0  # for a first answer, by an agent that responds
PEERS_S = 2.0  # for a host to answer which agents it shows
PATIENCE_S = 4.0  # a round waits no longer for a host that is up but slow
EXAMINE_S = 12.0  # the same for native stacks, which take a while each
AT_ONCE = 128  # hosts with an open question: bounds the memory for answers
FLEET = "fleet"  # probe name in `Unseen` for agents that contradict each other
RETRY_S = (5.0, 10.0, 20.0, 60.0)  # pauses before an agent is restarted


def start_fleet(options: FleetOptions, say: Callable[[str], None], ask: Collection[str] = ()) -> Fleet:
    """The fleet of the options, with its agents starting; `ask`: what they may send. Raises HangdocError."""
    hosts, transport = hosts_of(options), transport_of(options)
    collect_rarely()
    say(f"starting agents on {len(hosts)} host{'s' * (len(hosts) != 1)} via {options.via}")
    return Fleet(hosts, AgentPool(transport), say, ask=tuple(ask))


@dataclass(slots=True)
class Fleet:
    """A source of snapshots: agents on hosts. Close it at the end."""

    hosts: Sequence[str]
    agents: AgentPool
    say: Callable[[str], None]
    again: bool = True  # restart agents that ended
    ask: tuple[str, ...] = ()  # what the agents' probes may send over the network
    _hosts: dict[str, Host] = field(default_factory=dict)
    _owners: ProcessOwners = field(init=False)
    _kinds: Mapping[str, type] = field(init=False)
    _models: dict[str, Any] = field(default_factory=dict)  # shared by the decoders of all hosts
    _to_ask: deque[tuple[list[Host], protocol.Command]] = field(default_factory=deque)  # questions not sent yet
    _open: dict[str, int] = field(default_factory=dict)  # host with an open question -> its round
    _checked_s: float = 0.0  # last check for silent hosts
    _patience_s: float = 0.0
    _until_s: float = 0.0  # when the round stops waiting
    _began_s: float = field(default_factory=time.monotonic)
    _round: int = 0
    _heard: int = 0  # ID of the newest command to hosts that share their input: all of them answer it, asked or not
    _fresh: bool = False
    _forgotten: set[tuple[str, int, int]] = field(default_factory=set)
    _targets: tuple[Target, ...] = ()
    _members: set[tuple[str, int, int, int | None]] = field(default_factory=set)  # processes, with their ranks
    _news: dict[str, list[str]] = field(default_factory=dict)  # changes of hosts, not reported yet

    def __post_init__(self) -> None:
        registry = codec.registry()
        self._kinds = {**registry.rank, **registry.host}
        self._owners = ProcessOwners({host: at for at, host in enumerate(self.hosts)})
        self._hosts = {host: Host(host, Decoder(self._kinds, self._models)) for host in self.hosts}
        self.agents.start(list(self.hosts))

    # --- the source -----------------------------------------------------------------------------

    @property
    def targets(self) -> Sequence[Target]:
        return self._targets

    def round(self, tier: Tier, still: Collection[Key] = ()) -> tuple[Snapshot, ...]:
        """Ask every host without an open question. A host that does not answer in time is lost."""
        self._round += 1
        self._restart_agents()
        self._patience_s = EXAMINE_S if still else PATIENCE_S if self._round > 1 else START_S
        self._queue_questions(tier, still)
        while (left_s := self._until_s - time.monotonic()) > 0 and self._awaited():
            self._receive(left_s)
        for host in self._live():
            self._owners.note(host.name, {t: about for t, about in host.about.items() if t not in host.claims})
        self._verify_peers()
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
            self._receive(left_s)
            if len(self.lost()) > lost:
                return

    def close(self) -> None:
        self.agents.close()

    def lost(self) -> dict[str, str]:
        """Lost hosts, with the reason."""
        return {host.name: host.lost for host in self._hosts.values() if host.lost is not None}

    def pending(self) -> bool:
        """True if the first answer of some host is worth waiting for: its agent responds to pings, or may do so soon.

        Once there are ranks to watch, only agents that respond are waited for, and not for long: a probe may hang.
        """
        elapsed_s = time.monotonic() - self._began_s
        if elapsed_s >= (FIRST_S if not self._targets else HELLO_S):
            return False
        just_started = elapsed_s < HELLO_S and not self._targets
        return any(
            just_started if host.heard_s is None else host.silent_s() < SILENT_S
            for host in self._hosts.values()
            if host.shot is None and host.ended_s is None and not host.stopped
        )

    def blind(self) -> dict[str, str]:
        """Hosts with no visible rank and a reason why some may have been missed."""
        seen = ((host.name, host.shot) for host in self._live() if host.shot and not host.shot.ranks)
        return {name: lack.why for name, shot in seen for lack in shot.unseen if lack.probe == "discover"}

    # --- questions and answers ------------------------------------------------------------------

    def _restart_agents(self) -> None:
        now_s = time.monotonic()
        for host in self._hosts.values():
            pause_s = RETRY_S[min(host.tries, len(RETRY_S) - 1)]
            if self.again and not host.barred and host.ended_s is not None and now_s - host.ended_s >= pause_s:
                why = host.lost
                self._owners.forget(host.name)
                host = Host(host.name, Decoder(self._kinds, self._models), lost=why, tries=host.tries + 1)
                self._hosts[host.name] = host
                self.agents.start([host.name])

    def _queue_questions(self, tier: Tier, still: Collection[Key]) -> None:
        """Queue a question for every host without one, and send the first."""
        skipped = self._owners.skipped()
        do = "look" if tier < Tier.EXAMINE else "examine" if still else "inspect"
        shared: list[Host] = []
        own: dict[str, protocol.HostArguments] = {}
        for host in self._hosts.values():
            if host.asked is None and host.ended_s is None and not host.barred:
                pids = tuple(pid for name, pid in still if name == host.name)
                over = tuple(pid for name, pid, _ in self._forgotten if name == host.name)
                arguments = protocol.HostArguments(pids, skipped.get(host.name, ()), over)
                host.asked = self._round
                if self.agents.shares(host.name):
                    shared.append(host)
                    own |= {host.token: arguments} if arguments != protocol.HostArguments() and host.token else {}
                else:
                    by_token = {"": arguments} if arguments != protocol.HostArguments() else {}
                    self._to_ask.append(([host], protocol.Command(do, self._round, by_token, self._fresh, self.ask)))
        if shared:
            self._to_ask.append((shared, protocol.Command(do, self._round, own, self._fresh, self.ask)))
        self._fresh = False
        self._send_questions()

    def _verify_peers(self) -> None:
        """Ask each host with a contested process whether it shows the agents that claim it.

        Once for each pair, because it takes a round trip. An agent without a unique token cannot be shown.
        """
        tokens = Counter(host.token for host in self._hosts.values() if host.token)
        live = {host.name for host in self._live()}
        for name, others in self._owners.others().items():
            if name not in live:
                continue
            host = self._hosts[name]
            fresh = [other for other in others & live if (name, other) not in self._owners.shows]
            self._owners.shows |= {(name, other): False for other in fresh}
            if host.boot:  # else its agent is too old for the question
                host.peers = tuple(other for other in fresh if tokens[self._hosts[other].token] == 1)
            if host.peers:
                asked = protocol.HostArguments(peers=tuple(self._hosts[other].token for other in host.peers))
                self.agents.send(name, protocol.line(protocol.Command("peers", own={host.token: asked})))
        until_s = time.monotonic() + PEERS_S
        while (left_s := until_s - time.monotonic()) > 0 and any(host.peers for host in self._hosts.values()):
            self._receive(left_s)
        for host in self._hosts.values():
            host.peers = ()

    def _send_questions(self) -> None:
        """Send as many questions as may be open at once."""
        while self._to_ask and len(self._open) < AT_ONCE:
            hosts, command = self._to_ask.popleft()
            asked = [host for host in hosts if host.asked is not None]  # others have ended meanwhile
            for host in asked:
                if host.lost is None:
                    self._open[host.name] = self._round
                host.mark_sent(self._patience_s)
            if asked:
                self._until_s = time.monotonic() + self._patience_s
                self.agents.send(asked[0].name, protocol.line(command))
                if self.agents.shares(asked[0].name):
                    self._heard = command.id

    def _awaited(self) -> bool:
        return bool(self._to_ask) or self._round in self._open.values()

    def _check_silent(self) -> None:
        """Ping silent hosts; a host that does not respond is lost."""
        now_s, heard_by_all = time.monotonic(), False
        self._checked_s = now_s
        for host in self._hosts.values():
            if host.ended_s is not None:
                continue
            limit_s = START_S if host.heard_s is None else SILENT_S
            if host.silent_s() >= limit_s and host.lost is None:
                what = "has not answered" if host.heard_s is None else "has been silent"
                self._mark_lost(host, f"the agent {what} for {limit_s:g} s")
            elif host.late() and host.lost is None:
                self._mark_lost(host, f"the agent is alive but has not answered for {host.patience_s:g} s")
            elif host.heard_s and host.lost is None and now_s - max(host.heard_s, host.question_s) >= PING_S:
                host.mark_question()
                shared = self.agents.shares(host.name)
                if not (shared and heard_by_all):
                    self.agents.send(host.name, protocol.PING)
                heard_by_all |= shared

    def _receive(self, seconds: float) -> None:
        """Wait for events for at most this long, and handle all there are."""
        event = self.agents.next(min(seconds, PING_S / 4))
        while event is not None:
            self._handle(event)
            self._send_questions()
            event = self.agents.next(0.0)
        if time.monotonic() - self._checked_s >= PING_S / 4:
            self._check_silent()
            self._send_questions()
        self._report_changes()

    def _handle(self, event: AgentEvent) -> None:
        host = self._hosts[event.host]
        if event.kind == "flooded":
            host.stopped = host.barred = True
            self._mark_lost(host, event.text.decode())
        elif event.kind == "started":
            host.started, host.open_s = True, time.monotonic()  # it could not answer before
        elif event.kind == "ended":
            host.ended_s, host.open_s = time.monotonic(), None
            host.free()
            said = redact_text(event.text.decode(errors="replace"))[:300]
            why = host.lost if host.barred else said or host.lost
            self._mark_lost(host, why or "the connection to the agent was closed")
        elif not host.stopped:
            host.heard_s, host.open_s = time.monotonic(), None
            try:
                self._handle_line(host, event.text)
            except ValueError as error:
                self._mark_lost(
                    host,
                    f"cannot read the output of the agent ({str(error)[:200]}); is its version of hangdoc different?",
                )
                host.stopped = True
                self.agents.stop(host.name)

    def _handle_line(self, host: Host, text: bytes) -> None:
        if text.startswith(b'{"schema"'):
            hello = protocol.parse(text, protocol.Hello)
            if host.boot is not None:
                raise ValueError("a second hello")
            if hello.schema != protocol.SCHEMA:
                raise ValueError(f"its protocol is {hello.schema[:40]}")
            if hello.hangdoc not in (host.version, __version__):
                self.say(f"{host.name} has hangdoc {hello.hangdoc[:20]}, this host has {__version__}")
            host.version, host.boot = hello.hangdoc[:20], hello.boot
            host.token = hello.token if ISSUED.fullmatch(hello.token) else ""
            host.sent_s = None if host.sent_s is None else time.monotonic()  # it could not answer before
            return
        if text.startswith(b'{"to"'):
            answer = protocol.parse(text, protocol.Answer)
            heard = self.agents.shares(host.name) and host.answered < answer.to <= self._heard
            if answer.to != host.asked and not heard:
                raise ValueError("an answer without a question")
            host.shot, host.news = host.decoder.snapshot(host.name, answer), True
            host.answered = answer.to
            if answer.to == host.asked:
                host.free()
                self._open.pop(host.name, None)
            host.about = {
                rank.target: (one.process or f"{host.boot} {host.name} {rank.target.pid}", one.near)
                for rank, one in zip(host.shot.ranks, answer.ranks, strict=True)
            }
            host.claims = {
                target: "its agent claims that it runs on a different kernel than the agent"
                for target, (process, _) in host.about.items()
                if host.boot and process.partition(" ")[0] != host.boot
            }
        elif text.startswith(b'{"peers"'):
            shown = protocol.parse(text, protocol.PeersAnswer).peers
            self._owners.shows |= {(host.name, other): self._hosts[other].token in shown for other in host.peers}
            host.peers = ()
            return
        elif not text.startswith(b'{"pong"') or host.late():
            return  # a login banner; or the host was lost for another reason than silence
        if host.lost is not None:
            host.lost, host.tries = None, 0
            if host.asked is not None:
                self._open[host.name] = host.asked
            self._news.setdefault("back", []).append(host.name)

    def _mark_lost(self, host: Host, why: str) -> None:
        why = redact_text(why)  # it may quote the output of a command
        if host.lost is None:
            self._news.setdefault(f"not seen: {why}", []).append(host.name)
        host.lost = why
        self._open.pop(host.name, None)

    def _report_changes(self) -> None:
        """Report hosts that were lost or came back, those with the same reason in one line."""
        for fate, names in self._news.items():
            self.say(f"{fold_hosts(names)} {'is' if len(names) == 1 else 'are'} {fate}")
        self._news.clear()

    # --- snapshots ------------------------------------------------------------------------------

    def _snapshots(self) -> tuple[Snapshot, ...]:
        """A snapshot of each host that answered, with the names of the fleet; for a lost host the reason."""
        live = self._live()
        seen = {process for host in live for process, _ in host.about.values()}
        self._owners.keep({host.name for host in live}, seen)
        away = self._owners.skipped()
        owned = {host.name: self._owned(host) for host in live}
        names, apart = merge_jobs(self._named_targets(owned), lambda parts: self._trust(owned, parts))
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
        """The ranks that this host's agent answers for."""
        return [
            rank
            for rank in (host.shot.ranks if host.shot else ())
            if (host.name, rank.target.pid, rank.target.start_ticks) not in self._forgotten
            and rank.target not in host.claims
            and self._owners.owner(host.about[rank.target][0], host.name) == host.name
        ]

    def _named_targets(self, owned: Mapping[str, Sequence[RankEvidence]]) -> Iterator[Target]:
        """The targets with the names of their hosts. A rank that exited gives up its number: after a restart, another
        host may have it.
        """
        for name, ranks in owned.items():
            for rank in ranks:
                left = rank.alive is False and _process(name, rank.target) in self._members
                yield replace(rank.target, host=name, rank=None if left else rank.target.rank)

    def _trust(
        self, owned: Mapping[str, Sequence[RankEvidence]], parts: Sequence[Part]
    ) -> dict[Part, tuple[int, bool, int]]:
        """Trust in parts with the same claims: confirmed connections, earlier member of the job, number of ranks."""
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
        """By host: claims of its agent that another agent contests, or that it cannot know."""
        found: dict[str, list[Unseen]] = {}
        for host in live:
            for why in dict.fromkeys(host.claims.values()):
                ranks = [target.rank for target in host.claims if target.rank is not None]
                text = f"{name_ranks(ranks)} of {host.name} {'is' if len(ranks) == 1 else 'are'} not judged: {why}"
                found.setdefault(host.name, []).append(Unseen(FLEET, text, host=host.name))
        for name, pids in self._owners.contradictions().items():
            for pid, other in pids.items():
                why = f"{other} also claims this process, but its agent is not visible on {name}: both claims are kept"
                found.setdefault(name, []).append(Unseen(FLEET, why, pid=pid, host=name))
        for mine, theirs in apart.items():
            for part, why in (
                (mine, f"{theirs[0]} has the same ranks of this job: the ranks on {mine[0]} are judged separately"),
                (theirs, f"{mine[0]} claims the same ranks of this job: its ranks are judged separately"),
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
        """The newest snapshot with the names of the fleet. An unchanged target stays the same object."""
        before, host.named = host.named, {}
        for target in (rank.target for rank in ranks):
            job = names[host.name, target.job]
            known = before.get(target)
            host.named[target] = known if known and known.job == job else replace(target, host=host.name, job=job)
        assert host.shot is not None
        renamed = tuple(replace(rank, target=host.named[rank.target]) for rank in ranks)
        unseen = tuple(replace(lack, host=host.name) for lack in host.shot.unseen)
        return replace(host.shot, ranks=renamed, unseen=(*unseen, *doubts), elsewhere=away)


def _process(host: str, target: Target) -> tuple[str, int, int, int | None]:
    return host, target.pid, target.start_ticks, target.rank


def _nothing(host: str, why: str, now: str) -> Snapshot:
    return Snapshot(host, 0.0, now, (), unseen=(Unseen(AGENT, why, host=host),))
