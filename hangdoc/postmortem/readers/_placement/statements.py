"""Statements about which rank is which process on which host, one line at a time.

Tokens that only linking words or marks separate belong to one statement: `rank 12 = cnode44, pid 30217`, `gx14 holds
ranks 8-15`, `node2 (ranks 16 to 23)`, `# Rank 1 Group 0 Pid 4752 on w2 device 0` (nccl-tests: src/common.cu),
`RANK=3 LOCAL_RANK=1`. In a list, a bare number stands for what stood at its place before: `ranks 0-3: a01, 4-7: a02`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, starmap

from hangdoc.postmortem.readers._host_names import NAME, listed_numbers
from hangdoc.postmortem.readers._owner_hints import PID_FIRST
from hangdoc.postmortem.readers._placement.tokens import (
    BARE,
    BUS,
    GPU,
    HOST,
    LOCAL,
    NODE,
    PID,
    RANK,
    Token,
    may_be_host,
    tokens_in,
)

MAX_LINE = 600  # characters
MAX_RANKS = 4096  # of a host
MAX_GAP = 60  # characters between the tokens of a statement

_ABOUT = re.compile(r"rank|procid|process|\bpid|\bnode|(?<!\w)r\d{1,6}@", re.IGNORECASE)
_OUTPUT = re.compile(r"\s{0,8}\[rank\d{1,6}\]:")
_STRONG_WORDS = (
    r"on|at|is|are|has|have|holds?|hosts?|owns?|runs?|running|lives?|sits?|located|placed|uses?|using|gets?|got"
    r"|host(?:name)?|nodes?|machine|server|box|pod|ip|with|where"
)
_WEAK_WORDS = (
    r"and|the|in|of|as|for|it(?:'?s)?|that(?:'s)?|their|there|here|which|worker|process(?:es)?|one|first|second|third"
    r"|last|other"
)
_LINK = re.compile(rf"(?:[\s:=()\[\]|/>,~@\"'\u2192-]|\b(?:{_STRONG_WORDS}|{_WEAK_WORDS})\b){{0,60}}", re.IGNORECASE)
_STRONG = re.compile(rf"\b(?:{_STRONG_WORDS})\b|=|->|\u2192|@", re.IGNORECASE)
_NEXT_ITEM = re.compile(r"[\s,;)|]*(?:and |then )?(?:the )?\s*")
_ENDS = re.compile(r"\s*(?:(?:are|is|run|runs|live|sit)\b\s*)?(?:$|[,;)|.\]]|and\b|while\b|but\b|->)", re.IGNORECASE)
_CUE = re.compile(r"\b(?:on|host(?:name)?|node|machine|server|box|pod)[ :=]{1,3}$|@$", re.IGNORECASE)
_OF_PIDS = re.compile(r"\bpids?\b(?![\s:=#(]{0,3}\d)", re.IGNORECASE)
# A row of `ps -o pid,stat,...`
PS_ROW = r"\s{0,8}(\d{2,9}) {1,8}(?:\d{1,9} {1,8})?[DIRSTtXZ][<LNls+]{0,4} "
# A note at the end of a line with a process: `Process 811: python t.py   # RANK 0`, `(SLURM_PROCID=1)`, `<- rank 2`.
_OF_PROCESS = re.compile(
    r"\W{0,8}(?:Process |pid[ :=]{1,2})(\d{2,9})\b|.{0,200}?py-spy .{0,60}?(?:-p|--pid)[ =](\d{2,9})\b"
    rf"|{PS_ROW}"
)
_NOTE = re.compile(r"(?:\s#+|<[-=]+|\u2190|\s//|\s--(?=\s)|\s\(|\s\[|=>|\s->)\s?([^#()\[\]]{3,80})[)\]]?\s*$")
_LOCAL_NOTE = re.compile(r"\s#+ ?\(?local[ _-]?rank[ =:]{1,2}(\d{1,4})\b[^\n]{0,60}", re.IGNORECASE)
# Every process of a list: `3310 is LOCAL_RANK 0, 3311 LOCAL_RANK 1`, `4411 is rank 0 and 4412 is rank 1`.
_EACH = re.compile(
    r"(?<![\w.:#])(\d{3,9}) (?:is |was |= ?|-+> ?|\()?(?:the )?(?:global |world )?(local[ _-]?)?rank"
    r"[ =:#_]{0,2}(\d{1,6})(?!\w|\.\d)",
    re.IGNORECASE,
)
# Every process and its GPU: `process 0 -> cuda:0, process 1 -> cuda:1`.
_EACH_GPU = re.compile(
    r"\bproc(?:ess)?[ _]?(\d{1,3}) ?(?:-+>|=+>?|:|\u2192|on|uses|has|is on|gets) ?"
    r"(?:cuda:|gpu[ :]?)(\d{1,2})\b",
    re.IGNORECASE,
)
# A line of a log that has both: `cn-08 pid=104233 START world=6 rank=5`.
_BETWEEN = r"(?:[\s,;|]{1,4}(?:[A-Z]{2,12}|\w{1,20}[=:][^\s,;|]{1,40})){0,6}[\s,;|]{1,4}"
_KEYED = re.compile(
    rf"(?<![\w.])(?:pid[=:] ?(\d{{2,9}}){_BETWEEN}rank[=:] ?(\d{{1,6}})"
    rf"|rank[=:] ?(\d{{1,6}}){_BETWEEN}pid[=:] ?(\d{{2,9}}))(?![\w.])"
)
# DeepSpeed's launcher (launcher/launch.py), behind the host that pdsh prints:
# `n7: [...] process 811 spawned with command: ['python', '-u', 'train.py', '--local_rank=3']`
_SPAWNED = re.compile(
    rf"(?:\W{{0,4}}({NAME}): )?.{{0,160}}?\bprocess (\d{{2,9}}) spawned with command: "
    r".{0,400}?--local[_-]rank[= ](\d{1,4})\b"
)
# ncclras (nccl: src/ras/client_support.cc): `Rank 13 -- GPU 5 managed by process 4410 on node 10.0.0.7`.
_MANAGED = re.compile(
    rf"\s{{0,8}}Rank (\d{{1,7}})\b.{{0,80}}? ?-- GPU.{{1,60}}? ?managed by process (\d{{2,9}}) on node ({NAME})"
)
# Ray Train (ray: python/ray/train/v2/_internal/execution/worker_group/worker_group.py), a line for each worker:
# `- (ip=10.0.0.7, pid=2201) world_rank=5, local_rank=0, node_rank=5`.
_RAY_WORKER = re.compile(
    r".{0,80}?\((?:node_id=\w{1,64}, )?ip=(?P<host>[\d.a-fA-F:]{3,45}), pid=(?P<pid>\d{2,9})\)"
    r" world_rank=(?P<rank>\d{1,6})(?:, local_rank=(?P<local>\d{1,4}))?"
)
# An actor of Ray about itself, behind Ray's prefix: `(ActorModelRayActor pid=811, ip=10.0.0.7) global rank 5 ...`.
_RAY_ACTOR = re.compile(
    r"\s{0,4}\(\w{1,60} pid=(?P<pid>\d{2,9})(?:, ip=(?P<ip>[\d.a-fA-F:]{3,45}))?\)"
    r".{0,200}?\b(?:global|world)[ _]rank[ =:]{1,2}(?P<rank>\d{1,6})(?!\w|\.\d)"
)
# Ray's prefix of a process that runs no rank: `(TrainController pid=4471)`.
_OF_DRIVER = re.compile(r"\s{0,4}\((?:\w{0,40}Controller|\w{0,40}Tuner\w{0,20}|raylet|autoscaler)\b[^()\n]{0,80}\)")
# `SLURM_NODEID of gx4 is 3`, `the ranks of n2 are 8-15`: the host behind what it has.
_HAD_BY = re.compile(
    rf"\b(?P<what>(?:slurm_)?(?:nodeid|procid)|node[ _-]?rank|(?:global |world )?ranks?) (?:of|on) (?P<host>{NAME}) "
    r"(?:is|are|=) (?=\d)",
    re.IGNORECASE,
)
_STAMP = re.compile(r"(?<=\[)[VDIWEFC]\d{3,4} \d\d:\d\d:\d\d")  # glog's, which is no host: `[W722 03:41:19.044 ...`
# In front of a line: `[r6@cn22]`, `rank6@cn22`.
_RANK_AT = re.compile(rf"\W{{0,4}}r(?:ank[ _-]?)?(\d{{1,6}})@({NAME})")
# A list by host: `rank layout: gx1 = 0..7, gx2 = 8..15`, `RANK per pod: master-0=0, worker-0=1`,
# `one process each (gx1=0, gx2=1)`.
_HOST_LIST = re.compile(
    r"(?:^|[\s(])(?:ranks?\b(?!\s*\d)[^:\n]{0,40}:\s(?=\S)"
    r"|(?:one|1) (?:process|proc|rank) (?:each|a|per) ?[^:()\n]{0,12}\()",
    re.IGNORECASE,
)
_HOST_AND_RANKS = re.compile(
    rf"({NAME}?)\s?(?:=|:|->|\u2192|\s)\s?\[?(\d{{1,6}}(?:\s?(?:-|\u2013|\.\.|to|,)\s?\d{{1,6}}){{0,16}})\]?"
    rf"(?:[,;.:)]{{0,2}}\s|[,;.:)]{{0,2}}$)(?:[/|] )?"
)
# Each with its device: `ranks -> gpus: 0 17:00.0, 1 31:00.0`.
_BUS_LIST = re.compile(
    r"\branks?\b[^:\n\d]{0,40}:((?:\s{0,4},?\s{0,2}\d{1,6}[ :=]{1,3}(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:00\.0){2,64})",
    re.IGNORECASE,
)
_RANK_AND_BUS = re.compile(r"(\d{1,6})[ :=]{1,3}((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:00\.0)", re.IGNORECASE)
# By the last letter of the host: `rank a=0 b=1 c=2`.
_LETTER_LIST = re.compile(r"\branks? ((?:[a-z]=\d{1,4},? ){1,25}[a-z]=\d{1,4})\b")
_ASKED = re.compile(r"[^.;]{0,60}\?")
_NOT_NOW = re.compile(
    r"\b(?:not|isn't|was|were|used to|moved|formerly|yesterday|old|if|should|maybe|probably|unsure)\b|\?"
)


@dataclass(frozen=True, slots=True)
class Seat:
    """What one statement says. Lists of ranks and of PIDs, GPUs or local ranks correspond if they are equally long."""

    ranks: tuple[int, ...] = ()
    host: str | None = None
    pids: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    locals: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    bus: str | None = None
    firm: bool = True  # False: whether the name is a host depends on the rest of the text
    listed: bool = False  # a number in front of a rank: a PID if several lines have this form


@dataclass(slots=True)
class _Group:
    """Tokens of one statement."""

    tokens: list[Token] = field(default_factory=list)
    strong: bool = False  # a word or an arrow links its host

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(token.kind for token in self.tokens)


# Launcher options for the number of nodes and processes: they say nothing about where a rank runs.
_SIZES = re.compile(
    r"(?<![\w-])--?n(?:um)?[_-]?(?:nodes|machines|proc(?:s|esses)?)(?:[_-]per[_-]\w{1,8})?[ =]\d{1,5}\b"
)


def may_state(text: str) -> bool:
    """True for a line that names a rank, a process or a node, and is no output of a rank."""
    return len(text) <= MAX_LINE and _ABOUT.search(text) is not None and not _OUTPUT.match(text)


def seats_in(text: str) -> Iterator[Seat]:
    """The statements in a line."""
    text = _OF_DRIVER.sub("", text, count=1)
    if noted := _of_noted_process(text):
        yield noted
    elif "spawned with command" in text and (spawned := _SPAWNED.match(text)):
        yield Seat((), spawned[1], (int(spawned[2]),), locals=(int(spawned[3]),), listed=True)
    elif managed := _MANAGED.match(text):
        yield Seat((int(managed[1]),), managed[3], (int(managed[2]),))
    elif "world_rank=" in text and (worker := _RAY_WORKER.match(text)):
        local = (int(worker["local"]),) if worker["local"] else ()
        yield Seat((int(worker["rank"]),), worker["host"], (int(worker["pid"]),), locals=local)
    elif " pid=" in text and (actor := _RAY_ACTOR.match(text)):
        yield Seat((int(actor["rank"]),), actor["ip"], (int(actor["pid"]),))
    elif listed := PID_FIRST.fullmatch(text):
        yield Seat((int(listed[2]),), pids=(int(listed[1]),), listed=True)
    elif len(keyed := list(_KEYED.finditer(text))) == 1:
        pid, rank, rank_first, pid_last = keyed[0].groups()
        yield Seat((int(rank or rank_first),), pids=(int(pid or pid_last),))
    elif (at := _RANK_AT.match(text)) and may_be_host(at[2].rstrip(".-")):
        yield Seat((int(at[1]),), at[2].rstrip(".-"))
    elif len(each := _EACH.findall(text)) > 1:
        yield from starmap(_listed, each)
    elif len(gpus := _EACH_GPU.findall(text)) > 1:
        for number, gpu in gpus:
            yield Seat((int(number),), gpus=(int(gpu),))
    elif listed_buses := _BUS_LIST.search(text):
        for number, bus in _RANK_AND_BUS.findall(listed_buses[1]):
            yield Seat((int(number),), bus=bus)
    elif lettered := _LETTER_LIST.search(text):
        for letter, rank in re.findall(r"([a-z])=(\d+)", lettered[1]):
            yield Seat((int(rank),), letter, firm=False)
    elif by_host := _by_host(text):
        yield from by_host
    else:
        text = _HAD_BY.sub(r"host \g<host> \g<what> ", _SIZES.sub(";", _STAMP.sub("", text)))
        found = [seat for group in _Line(text).groups() if (seat := _seat(group, text))]
        yield from found
        if len(each) == 1 and not any(seat.pids for seat in found):
            yield _listed(*each[0])


def _listed(pid: str, local: str, number: str) -> Seat:
    """The rank of what may be a PID, or, if the text says `local`, its number on its host."""
    numbers = (int(number),)
    return Seat(() if local else numbers, pids=(int(pid),), locals=numbers if local else (), listed=True)


def _by_host(text: str) -> list[Seat]:
    """A list of hosts and their ranks; empty: the line is none, or does not have every rank once."""
    head = _HOST_LIST.search(text)
    if head is None or _NOT_NOW.search(text[: head.end()]):
        return []
    items = list(_HOST_AND_RANKS.finditer(text, head.end()))
    whole = items and all(
        one.end() == other.start() or not text[one.end() : other.start()].strip() for one, other in pairwise(items)
    )
    seats = [
        Seat(listed_numbers(item[2].replace("..", "-"), MAX_RANKS), item[1])
        for item in items
        if may_be_host(item[1]) or item[1] == "master"  # short for the pod of a PyTorchJob
    ]
    ranks = [rank for seat in seats for rank in seat.ranks]
    stated = whole and items[0].start() == head.end() and len(seats) == len(items) > 1
    return seats if stated and sorted(ranks) == list(range(len(ranks))) else []


def _of_noted_process(text: str) -> Seat | None:
    """The rank, or the number on its host, that a note at the end of a line gives to the process at its beginning."""
    process = _OF_PROCESS.match(text)
    if process is None:
        return None
    pids = (int(process[process.lastindex or 1]),)
    if noted := rank_in_note(text):
        return Seat(*noted, pids)
    local = _LOCAL_NOTE.search(text)
    if local is None or _NOT_NOW.search(local[0]):
        return None
    return _listed(str(pids[0]), local[0], local[1])


def rank_in_note(text: str) -> tuple[tuple[int], str | None] | None:
    """The only rank in a note at the end of a line, and the host that the note names. None: there is none."""
    note = _NOTE.search(text) if len(text) <= MAX_LINE else None
    if not note or _NOT_NOW.search(note[1]):
        return None
    tokens = list(tokens_in(note[1]))
    ranks = [token.numbers for token in tokens if token.kind == RANK]
    hosts = [token.text for token in tokens if token.kind == HOST]
    if len(ranks) != 1 or len(ranks[0]) != 1:
        return None
    return (ranks[0][0],), hosts[0] if len(hosts) == 1 else None


class _Line:
    """Groups the tokens of a line into statements."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._of_pids = _OF_PIDS.search(text) is not None
        self._group = _Group()
        self._shape: Sequence[str] = ()  # kinds of tokens in the statement before, for the next items of a list

    def groups(self) -> Iterator[_Group]:
        end = 0
        for token in tokens_in(self._text):
            gap, end = self._text[end : token.start], token.end
            linked = bool(self._group.tokens) and len(gap) <= MAX_GAP and _LINK.fullmatch(gap) is not None
            item = _NEXT_ITEM.fullmatch(gap) is not None
            if not linked and not (item and self._group.tokens):
                yield self._group
                self._group, self._shape = _Group(), self._shape if gap.strip() == ";" else ()
            if token.kind == BARE:
                token = replace(token, kind=self._kind_of_bare(token, gap, linked, item))
            if token.kind == BARE:
                yield self._group
                self._group = _Group()
                continue
            if self._group.tokens and (not linked or token.kind in self._group.kinds):
                yield self._group
                self._shape = self._group.kinds if len(self._group.tokens) > 1 else self._shape
                self._group = _Group()
            self._add(token, gap)
        yield self._group

    def _add(self, token: Token, gap: str) -> None:
        if self._group.tokens and HOST in (token.kind, *self._group.kinds):
            closed = "(" in gap and self._text.startswith(")", token.end)
            self._group.strong = self._group.strong or closed or _STRONG.search(gap) is not None
        self._group.tokens.append(token)

    def _kind_of_bare(self, token: Token, gap: str, linked: bool, item: bool) -> str:
        """What a number without a word is, by its place in the statement or in the list."""
        kinds, shape = self._group.kinds, self._shape
        if linked and kinds == (RANK,) and self._of_pids and len(token.numbers) == 1 and "," not in gap:
            return PID
        if linked and kinds == (HOST,) and RANK in shape and _STRONG.search(gap):
            return RANK
        if linked and kinds and len(kinds) < len(shape) and kinds == tuple(shape[: len(kinds)]):
            return shape[len(kinds)]
        first = kinds[0] if len(kinds) > 1 else shape[0] if shape and not kinds else BARE
        return first if item and first in (RANK, NODE, PID) else BARE


def _seat(group: _Group, text: str) -> Seat | None:
    """The statement of a group of tokens. None: it links nothing, or does not speak of what is so now."""
    if len(group.tokens) < 2:
        return None
    by_kind = {token.kind: token for token in group.tokens}
    first, last = group.tokens[0], group.tokens[-1]
    if _NOT_NOW.search(text[max(first.start - 24, 0) : first.start] + " " + text[first.end : last.start]):
        return None
    if text.startswith("'s", last.end) or _ASKED.match(text, last.end):
        return None
    host, firm = by_kind.get(HOST), True
    if host is not None and {RANK, NODE} & by_kind.keys():
        cued = _CUE.search(text[: host.start]) is not None
        firm = group.strong or cued or bool(by_kind.keys() & {PID, LOCAL, GPU})
        if not firm and not _ENDS.match(text, last.end):
            return None
    numbers = {kind: token.numbers for kind, token in by_kind.items()}
    return Seat(
        ranks=numbers.get(RANK, ()),
        host=host.text if host else None,
        pids=numbers.get(PID, ()),
        gpus=numbers.get(GPU, ()),
        locals=numbers.get(LOCAL, ()),
        nodes=numbers.get(NODE, ()),
        bus=by_kind[BUS].text if BUS in by_kind else None,
        firm=firm,
    )


def believable(stated: Sequence[Seat], hosts: frozenset[str], processes: frozenset[int]) -> list[Seat]:
    """The statements without names that only may be hosts: nothing else in the text shows that they are.

    Likewise without numbers that only may be PIDs; `processes` are the PIDs that the text shows to be some.
    """
    firm_hosts = {seat.host.lower() for seat in stated if seat.firm and seat.host}
    series = _series(seat.host for seat in stated if seat.host and (seat.firm or len(seat.ranks) > 1 or seat.nodes))
    listed = [(seat.pids, seat.ranks or seat.locals) for seat in stated if seat.listed]
    are_pids = len({pids for pids, _ in listed}) == len({ranks for _, ranks in listed}) > 1
    kept = []
    for seat in stated:
        name = (seat.host or "").lower()
        if seat.listed and not are_pids and not processes.issuperset(seat.pids):
            continue
        in_series = name in series and (len(seat.ranks) > 1 or bool(seat.nodes))
        if seat.firm or name in hosts or name in firm_hosts or in_series:
            kept.append(seat)
    return kept


_COUNTED = re.compile(r"\d+|(?<=[-\d])[a-z]$")


def _series(names: Iterable[str]) -> frozenset[str]:
    """The names that differ from another one only in their numbers, or a last letter: `a01`, `a02`; `a-x`, `a-y`."""
    stems = {name.lower(): _COUNTED.sub("#", name.lower()) for name in names}
    counts = Counter(stems.values())
    return frozenset(name for name, stem in stems.items() if counts[stem] > 1)
