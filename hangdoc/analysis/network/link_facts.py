"""The data connections between ranks as rules see them: each of their ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from hangdoc.analysis import Case, Key
from hangdoc.analysis.network import tcp_counters
from hangdoc.analysis.network.data_connections import Data, End
from hangdoc.analysis.network.interfaces import holding, of_rank
from hangdoc.analysis.network.link_faults import Faults, echo
from hangdoc.analysis.network.throughput import NOTHING, Flow
from hangdoc.evidence import Connection, Interface
from hangdoc.evidence.network import UNASKED, Echo
from hangdoc.formatting import endpoint

Dead = Mapping[End, bool | None]  # of data connections, judged at either end; those that are not in it are not


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """One end of a data connection, as `from_rank` sees it; a rank of -1 is not known."""

    from_rank: int
    to_rank: int
    from_pid: int
    to_pid: int | None
    local: str  # "ip:port"
    remote: str
    interface: str | None
    interface_up: bool | None
    state: str
    unacked_bytes: int  # written, not acknowledged by the peer
    receive_queue: int
    retransmits: int | None  # of the segment at the head, or probes in its stead, unanswered in a row
    backoff: int | None
    last_ack_s: float | None
    last_receive_s: float | None
    last_send_s: float | None
    idle_s: float | None
    pmtu: int | None
    dead: bool | None  # at this end or the other: bytes repeated in vain, nothing heard for seconds
    fault: str = ""  # of what this end sends (see `faults`): oversize dead lossy slow
    sent: Flow = NOTHING  # what this end sent over the window
    sent_a_step: float | None = None  # bytes, where the steps of the job are known
    segment_bytes: int | None = None  # most that one segment carries
    sacked: int | None = None  # segments that arrived, though one before them did not
    echo: Echo = UNASKED  # what the other end's host answered to requests of small and of full size
    passes: str = ""  # of these: all | some | small | none; empty: it was not asked
    only_full: bool | None = None  # all that is repeated in vain are full segments


@dataclass(frozen=True, slots=True, eq=False)
class Links(Sequence[LinkFacts]):
    """Both ends of every data connection, each told of when it is asked for: of most nobody asks."""

    case: Case  # without facts: these hold the links, and nothing frees a circle while collections are rare
    period_s: float | None  # of a step
    data: Sequence[Data]
    dead: Dead
    wrong: Faults

    def __len__(self) -> int:
        return len(self.data)

    @overload
    def __getitem__(self, at: int) -> LinkFacts: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[LinkFacts]: ...
    def __getitem__(self, at: int | slice) -> LinkFacts | Sequence[LinkFacts]:
        if isinstance(at, slice):
            return [_link(self, one) for one in self.data[at]]
        return _link(self, self.data[at])

    def column(self, name: str) -> list[Any]:
        """One field of each."""
        if name == "dead":
            return [self.dead.get(one.end, False) for one in self.data]
        if name == "fault":
            return [self.wrong.of(one.end) for one in self.data]
        return [getattr(one, name) for one in self]


def _link(links: Links, data: Data) -> LinkFacts:
    case, one, sent = links.case, data.connection, links.wrong.flows.get(data.end, NOTHING)
    heard, interfaces = echo(case, data), of_rank(case, data.owner)
    a_step = sent.bytes / sent.seconds * links.period_s if sent.bytes and sent.seconds and links.period_s else None
    return LinkFacts(
        from_rank=_number(case, data.owner),
        to_rank=_number(case, data.peer),
        from_pid=data.owner[1],
        to_pid=data.peer[1] if data.peer else None,
        local=endpoint(one.local, one.local_port),
        remote=endpoint(one.remote, one.remote_port),
        interface=one.interface,
        interface_up=is_up(one, holding(one, interfaces), interfaces),
        state=one.state,
        unacked_bytes=one.send_queue,
        receive_queue=one.receive_queue,
        retransmits=tcp_counters.unanswered(one),
        backoff=one.backoff,
        last_ack_s=one.last_ack_s,
        last_receive_s=one.last_receive_s,
        last_send_s=one.last_send_s,
        idle_s=tcp_counters.idle(one),
        pmtu=one.pmtu,
        dead=links.dead.get(data.end, False),
        fault=links.wrong.of(data.end),
        sent=sent,
        sent_a_step=a_step,
        segment_bytes=one.segment_bytes,
        sacked=one.sacked,
        echo=heard,
        passes=heard.passes,
        only_full=tcp_counters.only_full(one),
    )


def is_up(one: Connection, held: Interface | None, interfaces: tuple[Interface, ...] | None) -> bool | None:
    """Whether the interface that holds the connection's address is up with a carrier; None: not seen."""
    if held is not None:
        return held.up and held.carrier is not False
    return None if interfaces is None or one.interface is None else False  # the interface is gone altogether


def _number(case: Case, key: Key | None) -> int:
    rank = None if key is None else case.ranks[key].target.rank
    return -1 if rank is None else rank
