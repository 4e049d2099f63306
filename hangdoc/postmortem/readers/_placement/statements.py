"""Statements about which rank is which process on which host, one line at a time.

A line is read into tokens: ranks, hosts, PIDs, GPUs, local ranks, node ranks. Tokens that only linking words or marks
separate belong to one statement (`Seat`): `rank 12 = cnode44, pid 30217`, `gx14 holds ranks 8-15`, `node2 (ranks 16 to
23)`, `# Rank 1 Pid 4752 on w2 device 0` (nccl-tests: src/common.cu), `RANK=3 LOCAL_RANK=1`. In a list, a bare number
stands for what stood at its place before: `ranks 0-3: a01, 4-7: a02`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from hangdoc.postmortem.readers._owner_hints import NAME, PID_FIRST, is_host_name, listed_numbers

MAX_LINE = 600  # characters
MAX_NUMBERS = 4096  # in one list

RANK, LOCAL, GPU, PID, NODE, BUS, HOST, BARE = "rank", "local", "gpu", "pid", "node", "pci", "host", "bare"

_SPAN = r"\d{1,7}(?:\s?(?:-|\u2013|to|\.{2,3}|through)\s?\d{1,6})?"
_LIST = rf"{_SPAN}(?:\s?(?:,(?: and)?|and|&)\s?{_SPAN}){{0,64}}"
_FEW = rf"{_SPAN}(?:,{_SPAN}){{0,64}}"  # behind a word in the singular: `local 0, 5 -> w1` are two statements
_IS = r"[\s:=#\[(\"'-]{0,4}"
_NUMBERED = {  # the words in the singular, and in the plural
    NODE: (r"(?:node|machine|group)[ _-]?rank|slurm_nodeid|node[ _-]?(?:id|index|idx)|node(?=[ #:=]{1,2}\d)", r"nodes"),
    LOCAL: (r"local[ _-]?rank|slurm_localid|local(?=[ #:=]{1,2}\d)", r"local[ _-]?ranks"),
    RANK: (
        r"(?:global |world |global_|world_)?rank|slurm_procid|procid|(?:pmi|pmix|ompi_comm_world)_rank|process_index",
        r"(?:global )?ranks",
    ),
    PID: (r"(?:--)?pid(?!\D{0,4}[01]\b)|process(?= \d{3})|-p(?= \d{3})", r"pids"),
    GPU: (r"gpu|cuda|device|cudadev", r"gpus|devices"),
}
_WORD_START, _NUMBER_END = r"(?<![A-Za-z0-9_$])", r"(?![\w]|[.:]\d|\s?(?:%|ms\b|MHz\b|GiB\b|GB\b|W\b))"
_TOKEN = re.compile(
    "|".join(
        rf"{_WORD_START}(?:{words}){_IS}(?P<{kind}{of}>{numbers})(?![A-Za-z_]|\.\d|\d)"
        for kind, both in _NUMBERED.items()
        for of, words, numbers in (("s", both[1], _LIST), ("", both[0], _FEW))
    )
    + rf"|(?<![\w.:])(?P<{BUS}>(?:[0-9a-fA-F]{{4,8}}:)?[0-9a-fA-F]{{2}}:[0-9a-fA-F]{{2}}\.[0-7])(?![\w.:])"
    + rf"|(?<![\w./:$-])(?P<{BARE}>{_LIST}){_NUMBER_END}"
    + rf"|(?<![\w./$-])(?P<{HOST}>{NAME})(?![\w/]|\(\))",
    re.IGNORECASE,
)
_STRONG_WORDS = (
    r"on|at|is|are|has|have|holds?|hosts?|owns?|runs?|running|lives?|sits?|located|placed|uses?|using|gets?|got"
    r"|host(?:name)?|nodes?|machine|server|box|pod|ip|with"
)
_WEAK_WORDS = r"and|the|in|of|as|its?|their|there|here|which|worker|process(?:es)?|group \d{1,3}|out of \d{1,6}|of \d{1,6}"
_MARKS = r"[\s:=()\[\]|/>,~@\"'\u2192-]"
_LINK = re.compile(rf"(?:{_MARKS}|(?:/|of )\d{{1,6}}(?!\d)|\b(?:{_STRONG_WORDS}|{_WEAK_WORDS})\b){{0,16}}", re.IGNORECASE)
_STRONG = re.compile(rf"(?:\b(?:{_STRONG_WORDS})\b|=|->|=>|\u2192|@)", re.IGNORECASE)
_NEXT_ITEM = re.compile(r"[\s,;)|]*(?:and |then )?(?:the )?\s*")
_ENDS = re.compile(r"\s*(?:$|[,;)|.\]]|and\b|while\b|but\b|->)", re.IGNORECASE)
_CUE = re.compile(r"\b(?:on|host(?:name)?|node|machine|server|box|pod)[ :=]{1,3}$|@$", re.IGNORECASE)
_NO_PLACE = re.compile(  # names with digits of what ranks are busy with
    r"(?:layer|block|stream|conv|module|bucket|chunk|queue|channel|ring|tree|group|pg|seq|comm|param|expert|head|batch"
    r"|mb|micro|op|kernel|bn|fc|dense|linear|iter|it|loop|phase|level|barrier|all_?\w+|c10d|zero|adam\w*)[-_.]?\w{0,3}\d*"
    r"|.*[_/].*",
    re.IGNORECASE,
)
_SHORT_NAME = re.compile(r"[a-z]\d{1,4}", re.IGNORECASE)
_GPU_MODEL = re.compile(
    r"a(?:2|10|16|30|40|100|800)|h(?:20|100|200|800)|b(?:100|200|300)|l(?:4|20|40)|t4|v100|p(?:4|40|100)|k(?:40|80)|[ve]\d",
    re.IGNORECASE,
)
_FILE_NAME = re.compile(r"(?=.*[A-Za-z]).*\.(?:\d+|[\w-]*-[\w-]*)(?:\..*)?")  # `report.0.nsys-rep`, no domain
_LETTERED = re.compile(r"(?:[a-z]{2,20}-[a-z]|(?:node|host|worker|machine|server|box)[-_]?[a-z])", re.IGNORECASE)
_NUMBERED_NAME = re.compile(r"(?:node|machine|host|worker|trainer|pod)-?\d{1,5}", re.IGNORECASE)
# A note at the end of a line with a process: `Process 811: python t.py   # RANK 0`, `(SLURM_PROCID=1)`, `<- rank 2`.
_OF_PROCESS = re.compile(r"\W{0,8}(?:Process |pid[ :=]{1,2})(\d{2,9})\b|.{0,200}?py-spy .{0,60}?(?:-p|--pid)[ =](\d{2,9})\b")
_NOTE = re.compile(r"(?:\s#+|<[-=]+|\u2190|\s//|\s--|\s\(|\s\[|=>|\s->)\s?([^#()\[\]]{3,80})[)\]]?\s*$")
_NOT_NOW = re.compile(r"\b(?:not|isn't|was|were|used to|moved|formerly|yesterday|old|if|should|maybe|probably|unsure)\b|\?")


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    start: int
    end: int
    numbers: tuple[int, ...] = ()


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
    """Tokens of one statement, with what links them."""

    tokens: list[Token] = field(default_factory=list)
    strong: bool = False  # a word or an arrow links its host

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(token.kind for token in self.tokens)


def seats_in(text: str) -> Iterator[Seat]:
    """The statements in a line."""
    if len(text) > MAX_LINE or not re.search(r"\d", text):
        return
    if noted := _of_noted_process(text):
        yield noted
        return
    if listed := PID_FIRST.fullmatch(text):
        yield Seat((int(listed[2]),), pids=(int(listed[1]),), listed=True)
        return
    for group in _groups(text):
        if seat := _seat(group, text):
            yield seat


def _of_noted_process(text: str) -> Seat | None:
    """The rank that a note at the end of a line gives to the process at its beginning."""
    process, note = _OF_PROCESS.match(text), _NOTE.search(text)
    if not process or not note:
        return None
    ranks = [token for token in _tokens(note[1]) if token.kind == RANK]
    if len(ranks) != 1 or len(ranks[0].numbers) != 1 or _NOT_NOW.search(note[1]):
        return None
    hosts = [token.text for token in _tokens(note[1]) if token.kind == HOST]
    return Seat(ranks[0].numbers, hosts[0] if len(hosts) == 1 else None, (int(process[1] or process[2]),))


def _tokens(text: str) -> list[Token]:
    found = []
    for match in _TOKEN.finditer(text):
        kind, value = (match.lastgroup or "").rstrip("s"), match[match.lastgroup or ""]
        if kind == HOST:
            value = value.rstrip(".-")
            if not _may_be_place(value, text[: match.start()]):
                continue
            found.append(Token(kind, value, match.start(), match.start() + len(value)))
        elif kind == BUS:
            found.append(Token(kind, value, match.start(), match.end()))
        elif numbers := listed_numbers(re.sub(r"\.\.\.|through", "-", value), MAX_NUMBERS):
            found.append(Token(kind, value, match.start(), match.end(), numbers))
    return found


def _may_be_place(name: str, before: str) -> bool:
    if _NO_PLACE.fullmatch(name) or _GPU_MODEL.fullmatch(name) or _FILE_NAME.fullmatch(name):
        return False
    return is_host_name(name) or any(form.fullmatch(name) for form in (_NUMBERED_NAME, _LETTERED, _SHORT_NAME))


def _groups(text: str) -> Iterator[_Group]:
    """Statements, each once it is complete. A bare number takes the kind of the one at its place in the one before."""
    group, shape = _Group(), ()
    end = 0
    of_pids = re.search(r"\bpids?\b(?![\s:=#(]{0,3}\d)", text, re.IGNORECASE) is not None
    for token in _tokens(text):
        gap = text[end : token.start]
        linked = bool(group.tokens) and _LINK.fullmatch(gap) is not None and len(gap) <= 60
        new_item = _NEXT_ITEM.fullmatch(gap) is not None
        if not linked and not (new_item and group.tokens):
            if group.tokens:
                yield group
            group, shape = _Group(), shape if ";" in gap and len(gap) < 4 else ()
        if token.kind == BARE:
            token = replace(token, kind=_kind_of_bare(group, shape, linked, new_item, of_pids, token, gap))
            if token.kind == BARE:
                if group.tokens:
                    yield group
                group, end = _Group(), token.end
                continue
        if token.kind in group.kinds or (group.tokens and not linked):
            yield group
            shape = group.kinds if len(group.tokens) > 1 else shape
            group = _Group()
        elif group.tokens and HOST in (token.kind, *group.kinds):
            closed = "(" in gap and text[token.end : token.end + 1] == ")"
            group.strong = group.strong or closed or _STRONG.search(gap) is not None
        group.tokens.append(token)
        end = token.end
    if group.tokens:
        yield group


def _kind_of_bare(
    group: _Group, shape: Sequence[str], linked: bool, new_item: bool, of_pids: bool, token: Token, gap: str
) -> str:
    kinds = group.kinds
    if linked and kinds == (RANK,) and of_pids and len(token.numbers) == 1 and not gap.strip().startswith(","):
        return PID
    if linked and kinds == (HOST,) and RANK in shape and _STRONG.search(gap):
        return RANK
    if shape and linked and len(kinds) < len(shape) and kinds == tuple(shape[: len(kinds)]) and kinds:
        return shape[len(kinds)]
    pattern = kinds if len(kinds) > 1 else shape
    if pattern and new_item and (len(kinds) > 1 or not kinds) and pattern[0] in (RANK, NODE, PID):
        return pattern[0]
    return BARE


def _seat(group: _Group, text: str) -> Seat | None:
    """The statement of a group of tokens. None: it links nothing, or speaks of the past."""
    if len(group.tokens) < 2:
        return None
    by_kind = {token.kind: token for token in group.tokens}
    first, last = group.tokens[0], group.tokens[-1]
    if _NOT_NOW.search(text[max(first.start - 24, 0) : first.start] + " " + text[first.end : last.start]):
        return None
    if text[last.end : last.end + 2] == "'s":
        return None
    numbers = {kind: token.numbers for kind, token in by_kind.items()}
    host = by_kind.get(HOST)
    firm = True
    if host is not None and {RANK, NODE} & by_kind.keys():
        cued = _CUE.search(text[: host.start]) is not None
        extra = len(by_kind.keys() & {PID, LOCAL, GPU}) > 0
        firm = group.strong or cued or extra
        if not firm and not _ENDS.match(text, last.end):
            return None
    return Seat(
        numbers.get(RANK, ()), host.text if host else None, numbers.get(PID, ()), numbers.get(GPU, ()),
        numbers.get(LOCAL, ()), numbers.get(NODE, ()), by_kind[BUS].text if BUS in by_kind else None, firm,
    )  # fmt: skip


def believable(seats: Iterable[Seat], hosts: frozenset[str]) -> list[Seat]:
    """Without names that only may be hosts: no other part of the text, and no other name of the series, shows it."""
    every = list(seats)
    known = hosts | {seat.host.lower() for seat in every if seat.firm and seat.host}
    stems: dict[str, set[str]] = {}
    for seat in every:
        if seat.host and not seat.firm and len(seat.ranks) > 1:
            stems.setdefault(re.sub(r"\d+", "#", seat.host.lower()), set()).add(seat.host.lower())
    kept = []
    lists = len({seat.pids for seat in every if seat.listed}) == len({seat.ranks for seat in every if seat.listed}) > 1
    for seat in every:
        if seat.listed and not lists:
            continue
        name = (seat.host or "").lower()
        series = len(stems.get(re.sub(r"\d+", "#", name), ())) > 1
        if seat.firm or name in known or series:
            kept.append(replace(seat, firm=True))
        elif len(seat.pids or seat.gpus or seat.locals) > 0 and seat.ranks:
            kept.append(replace(seat, host=None, firm=True))
    return kept
