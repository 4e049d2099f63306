"""Figures of ranks, GPUs or hosts in a text: in tables, in lists under a heading, in lines of a rank or of several.

A text is read line by line into owners (`rank 3`, `[rank3]`, `gpu07:`) and values (`fwd 0.84s`). A value belongs to the
owner before it, else to the prefix of its line. Its name is the text before it, else the heading of its line or block.
figure_kinds.yaml says which names are of use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import isfinite
from pathlib import Path

import yaml

from hangdoc.evidence.figures import Figure, Figures
from hangdoc.postmortem.readers._logs.cpu_texts import CpuTexts
from hangdoc.postmortem.readers._logs.ending import step_of_total
from hangdoc.postmortem.readers._logs.gpu_links import GpuLinks
from hangdoc.postmortem.readers._logs.gpu_tables import GpuTables
from hangdoc.postmortem.readers._logs.prefixes import Line, PrefixStyle, parse
from hangdoc.postmortem.readers._logs.profiles import Profiles
from hangdoc.postmortem.readers._logs.rank_reports import RankReports
from hangdoc.postmortem.readers._owner_hints import NAME, HostContext, is_host_name, listed_numbers
from hangdoc.postmortem.readers._placement.placement import Placement, placement_of
from hangdoc.redaction.text import redact

FILE = Path(__file__).parent / "figure_kinds.yaml"
MAX_BYTES = 128 * 2**10  # searched at the end of a file
MAX_LINES = 2_000
MAX_LINE = 1_000  # characters
MAX_FIGURES = 10_000
MAX_OWNERS = 1_024  # of one value: `ranks 0-7`
MAX_NAME = 60  # characters
MAX_CELLS = 64
SPENT = frozenset({"step", "work", "backward", "wait"})  # kinds of the time that a step takes, besides `input`

_UNIT = (
    r"(?:\u00b5s|\u03bcs|us|usec|msecs?|ms|secs?|seconds?|s|mins?)(?:/(?:it|iters?|iteration|steps?|batch))?"
    r"|[kK]?(?:tok(?:en)?s?|samples?|imgs?|images?|seqs?|its?|iters?|steps?|examples?|frames?)/(?:secs?|second|s)"
    r"(?:/(?:gpu|device|rank))?|[TGP]?FLOP/?[sS]?|%|x"
)
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9_.])(?P<kind>(?:global|world)[ _-]?rank|dp[ _-]?rank|rank|process|proc|gpu|cuda|device|card)s?"
    r"[\"']?[ _:=#\[(]{0,3}(?P<number>\d{1,6})(?:\]|\))?(?![\w/]|\.\d|-\d)"
    r"|(?<![A-Za-z0-9_.])(?P<plural>ranks|gpus|processes)[ :=\[(]{1,3}"
    r"(?P<numbers>\d{1,6}(?:(?: ?(?:,|-|\u2013|&|and|to|\.\.) ?){1,2}\d{1,6}){0,64})\]?(?![\w/]|\.\d)"
    r"|(?<![A-Za-z0-9_.:/-])(?P<short>dp|rk|r|p)(?P<digit>\d{1,5})(?![\w./-])"
    r"|(?<![\w.:/@#+-])(?P<value>-?\d{1,15}(?:,\d{3}){0,4}(?:\.\d{1,12})?(?:[eE][+-]?\d{1,3})?)"
    rf"(?: ?(?P<unit>{_UNIT})(?![\w/]|[ =:]{{1,3}}\d))?(?![\w:/]|\.\d|-\d)"
    r"|(?<![\w.:/-])(?:0x)?(?=[a-f]{0,63}\d)(?=\d{0,63}[a-f])(?P<hash>[0-9a-f]{4,64})(?![\w/-]|\.\w)"
)
# Numbers of something else than the ranks of the job.
_OTHER = re.compile(
    r"\b(?:local|node|group|tp|pp|cp|ep|tensor|pipeline|expert)[ _-]?(?:model[ _-])?(?:parallel[ _-])?rank"
    r"[\"']?[ :=#]{0,3}\d{1,6}",
    re.IGNORECASE,
)
_NO_COMM = re.compile(r"\(?\b(?:no|without|w/o|excl(?:uding|\.)?|minus) [\w /-]{1,30}\)?")
_CLAUSE = re.compile(r"[|;,\u2022{}]|\s{2,}|:\s| - |->")
_FILLERS = re.compile(
    r"\b(?:about|approx|took|takes?|taken|is|are|was|were|at|in|done|finished|each|all|around|between|of|the|to|avg)\b"
)
_EDGES = " \t:=([{<>\"'~`*_+]})|,;\u2248-"
_STEP = re.compile(
    r"\b(?:global[_ ]?)?(?:step|iter(?:ation)?|it|update)s?\b[\s:=#\"'\[]{1,4}(\d{1,9})(?![\d.])"
    r"(?! ?(?:ms|s|sec|seconds)\b)",
    re.IGNORECASE,
)
_PLACE = re.compile(  # how far the job is, which names no figure: `step 400`, `epoch 3 iter 200/500`
    r"\W{0,8}(?:(?:global[ _]?)?(?:step|iter(?:ation)?|it|update|batch|epoch)s?[\s:=#\"'\[(]{1,4}"
    r"\d{1,9}(?:/\d{1,9})?\W{0,8}){1,4}"
)
_PRINTS = re.compile(r"^(?:and |so |then )?(?:i|we) (?:also |now |then )?(?:print|log|dump|compute|compared?)(?:ed)? ")
# What differs between replicas by design: `sha1 of the batch`, `optimizer shard md5`.
_EACH_ITS_OWN = re.compile(
    r"\b(?:batch(?:es)?|inputs?|samples?|data(?:set)?|images?|tokens?|indices|shards?|sharded|grads?|gradients?|rng"
    r"|files?|local)\b"
)
_COUNTED = frozenset({"step", "steps", "iter", "iters", "iteration", "it", "update", "batch", "epoch", "at"})
_TIME_UNIT = {
    "\u00b5s": 1e-6, "\u03bcs": 1e-6, "us": 1e-6, "usec": 1e-6, "ms": 1e-3, "msec": 1e-3, "msecs": 1e-3, "s": 1.0,
    "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0, "min": 60.0, "mins": 60.0,
}  # fmt: skip
_UNIT_IN_NAME = re.compile(r"(?:^|[\s(\[/,])(\u00b5s|\u03bcs|us|usec|ms|msecs?|s|secs?|seconds?)\)?\]?$")
_IS_TIME = re.compile(r"\b(?:times?|timer|timing|took|elapsed|duration|latency)\b")
_STATISTICS = re.compile(r"\b(?:min|max|avg|mean|median|std|p50|p99|slowdown)\b", re.IGNORECASE)
_HEAD = re.compile(
    r"(?P<rank>(?:global[ _]?)?rank(?:[ _]?id)?|proc(?:ess)?(?:[ _]?id)?)"
    r"|(?P<gpu>gpu(?:[ _]?(?:id|index))?|device|card)"
    r"|(?P<host>host(?:name)?|node(?:[ _]?name)?|pod|machine|server|worker)",
    re.IGNORECASE,
)
_RULE = re.compile(r"[\s|+:=\u2500\u2502\u253c-]{3,}")
_OWN_CELL = re.compile(r"(?:rank|gpu|cuda|proc(?:ess)?)?[ _:#]{0,2}(\d{1,6})", re.IGNORECASE)
_HOST_CELL = re.compile(r"[A-Za-z][\w.-]{0,100}")
_HOST_ROW = re.compile(  # of a list below a heading, as in `throughput per node (tokens/s)`
    rf"\W{{0,8}}({NAME})[\s:=|]{{1,40}}(\d{{1,15}}(?:,\d{{3}}){{0,4}}(?:\.\d{{1,12}})?)(?: ?({_UNIT}))?\W*"
)
_OF_HOSTS = re.compile(r"\b(?:hosts?|nodes?|machines?|servers?|pods?|hostnames?)\b", re.IGNORECASE)
_OF_NETWORK = re.compile(r"\b(?:links?|ports?|nics?|bandwidth|bus ?bw|[kmg]bit|[kmg]bps|[kmg]b/s)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FigureKind:
    """An entry of figure_kinds.yaml."""

    kind: str
    expression: re.Pattern[str]
    time: str | None  # unit, fraction, any; None: it is no time
    examples: Sequence[str]


@cache
def figure_kinds() -> tuple[FigureKind, ...]:
    """All entries, in file order."""
    entries = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return tuple(
        FigureKind(one["kind"], re.compile(one["match"]), one.get("time"), tuple(one["example"])) for one in entries
    )


@dataclass(frozen=True, slots=True)
class _Owner:
    of: str
    name: str


@dataclass(frozen=True, slots=True)
class _Value:
    owners: tuple[_Owner, ...]
    name: str
    text: str
    unit: str | None = None
    exact: bool = False


@dataclass(slots=True)
class _Block:
    """What the lines above say about the next ones."""

    heading: str = ""
    columns: list[str] = field(default_factory=list)  # of a table; empty: none is open
    place: int = 0  # of the column with the owner
    of: str = ""
    owners: list[_Owner] = field(default_factory=list)  # of the columns, in a table with a column for each owner
    wide: bool = False  # cells are separated by single blanks


def read_figures(
    tail: bytes, lines: int, style: PrefixStyle, source: str, placement: Placement | None = None
) -> Figures | None:
    """The figures in the last bytes of a file that has `lines` lines in total. None: there are none to compare.

    `placement`: where the whole text says that the ranks run; default: what its end says.
    """
    texts = tail[-MAX_BYTES:].decode("utf-8", "replace").split("\n")[-MAX_LINES:]
    first = max(lines - len(texts) + (1 if texts and texts[-1] else 2), 1)
    found: list[Figure] = []
    block = _Block()
    gpus, cpus, links, profiles, reports = GpuTables(), CpuTexts(), GpuLinks(), Profiles(), RankReports()
    hosts = HostContext("\n".join(texts).encode())
    for number, raw in enumerate(texts, first):
        if len(raw) > MAX_LINE or len(found) >= MAX_FIGURES:
            continue
        line = parse(raw, style)
        host = line.host or hosts.at(number - first + 1)
        gpus.feed(line.text, host, number)
        cpus.feed(line.text, line.rank, line.host, host, number)
        links.feed(line.text, host, number)
        profiles.feed(line.text or raw, line.rank, number)
        reports.feed(line.text, number)
        found_step = _STEP.search(line.text)
        step = int(found_step[1]) if found_step else step_of_total(line.text)
        if raw.count("[rank") > 1:  # the rank of the first is no prefix of them all
            line = Line(raw.strip())
        if line.rank is None and line.host is None and host is not None:
            line = replace(line, host=host)  # of the heading above
        for value in _values(line, block, number - first + 1 < len(texts)):
            found += _figures(value, step, number)
    profiles.end()
    own = (gpus, cpus, links, profiles, reports)
    kept = [*_comparable(found[:MAX_FIGURES]), *(figure for one in own for figure in one.found)]
    if not kept:
        return None
    placement = placement or placement_of("\n".join(texts))
    return Figures(
        tuple(kept), source, placement.index_is_rank, placement.ordinal_is_rank, _ranks_of_gpus(kept, placement)
    )


def _ranks_of_gpus(found: Iterable[Figure], placement: Placement) -> dict[str, int]:
    ranks = {}
    for owner in dict.fromkeys(one.owner for one in found if one.of == "gpu"):
        host, _, gpu = owner.rpartition("/")
        if (rank := placement.rank_of_gpu(host, gpu)) is not None:
            ranks[owner] = rank
    return ranks


def _comparable(found: Sequence[Figure]) -> list[Figure]:
    """Without short names that number no ranks (`p50`, `p99`), and kinds that only one owner has."""
    shorts = {int(one.owner) for one in found if one.of == "short"}
    numbered = bool(shorts) and len(shorts) > 1 and max(shorts) - min(shorts) + 1 == len(shorts)
    named = [
        Figure(one.kind, one.name, "rank", one.owner, one.value, one.exact, one.timed, one.step, one.line)
        if one.of == "short"
        else one
        for one in found
        if one.of != "short" or numbered
    ]
    owners: dict[tuple[str, str], set[str]] = {}
    for one in named:
        owners.setdefault((one.kind, one.of), set()).add(one.owner)
    metered = {one.line for one in named if one.kind == "input"} & {one.line for one in named if one.kind in SPENT}
    return [one for one in named if len(owners[one.kind, one.of]) > 1 or one.line in metered]


def _values(line: Line, block: _Block, whole: bool) -> Iterator[_Value]:
    """The values in a line; updates the block. A line that is not whole may be cut within its last number."""
    text = _OTHER.sub(" ", line.text)
    if not text.strip():
        block.columns, block.owners = [], []
        return
    if _RULE.fullmatch(text):
        return
    if (block.columns or block.owners) and (row := _row(text, block)) is not None:
        yield from row
        return
    block.columns, block.owners = [], []
    if _opens_table(text, block):
        return
    host = _HOST_ROW.fullmatch(text) if whole else None
    if host and is_host_name(host[1]) and _OF_HOSTS.search(block.heading) and not _OF_NETWORK.search(block.heading):
        yield _Value((_Owner("host", host[1]),), block.heading, host[2], host[3])
        return
    own = _Owner("rank", str(line.rank)) if line.rank is not None else None
    if own is None and line.host:
        own = _Owner("host", line.host)
    yield from _in_line(text, own, block)


# --- tables ---------------------------------------------------------------------------------------


def _cells(text: str, wide: bool = False) -> list[str]:
    if text.count("|") > 1:
        cells = text.strip().strip("|").split("|")
    elif "\t" in text.strip():
        cells = text.strip().split("\t")
    elif wide:
        cells = text.split()
    elif re.search(r"\S\s{2,}\S", text):
        cells = re.split(r"\s{2,}", text.strip())
    else:
        commas = text.count(",")
        cells = text.split(",") if commas > 1 or (commas and not re.search(r"\s", text.strip())) else text.split()
    return [cell.strip() for cell in cells[:MAX_CELLS]]


def _opens_table(text: str, block: _Block) -> bool:
    """True for the head of a table: a column for the owner and one with a figure, or a column for each owner."""
    for wide in (False, True):
        cells = _cells(text, wide)
        heads = [_HEAD.fullmatch(cell) for cell in cells]
        if wide and text.rstrip().endswith((":", ".", "?", "!")):
            continue  # a sentence, which may be the heading of a list
        if any(re.fullmatch(r"[-\d.,=%]+", cell) for cell in cells) or "per" in cells:
            continue  # figures are in the rows, and a heading says of what they are
        if any(heads) and len(cells) > 1 and any(_kind(cell, None) for cell in cells):
            ranked = next((at for at, head in enumerate(heads) if head and head["rank"]), None)
            block.place = ranked if ranked is not None else next(at for at, head in enumerate(heads) if head)
            head = heads[block.place]
            block.of = (head.lastgroup if head else None) or "rank"
            block.columns, block.wide = [cell.lower() for cell in cells], wide
            return True
        owners = [one for cell in cells if (one := _owner_cell(cell))]
        if len(owners) > 1 and len(owners) >= len(cells) - 1:
            block.owners, block.wide = owners, wide
            block.heading = block.heading if len(owners) == len(cells) else cells[0] or block.heading
            return True
    return False


def _owner_cell(cell: str, kinds: str = "rank|gpu|proc|process") -> _Owner | None:
    found = re.fullmatch(rf"({kinds})[ _:#]{{0,2}}(\d{{1,6}})", cell, re.IGNORECASE)
    return _Owner("gpu" if found[1].lower() == "gpu" else "rank", found[2]) if found else None


def _row(text: str, block: _Block) -> list[_Value] | None:
    """The values of a row. None: the line is no row of the table."""
    cells = _cells(text, block.wide)
    if block.owners:
        values = [match for match in _TOKEN.finditer(text) if match["value"] or match["hash"]]
        if len(values) != len(block.owners):
            return None
        name = text[: values[0].start()].strip(_EDGES) or block.heading
        return [
            _Value((owner,), name, match["value"] or match["hash"], match["unit"], bool(match["hash"]))
            for owner, match in zip(block.owners, values, strict=True)
        ]
    if len(cells) != len(block.columns):
        return None
    owner = _OWN_CELL.fullmatch(cells[block.place])
    if block.of == "host" and _HOST_CELL.fullmatch(cells[block.place]) and not _owner_cell(cells[block.place], "rank"):
        of, name = "host", cells[block.place]
    elif owner:
        of, name = block.of, owner[1]
    else:
        return None
    found = []
    for at, cell in enumerate(cells):
        match = _TOKEN.fullmatch(cell)
        if at != block.place and match and (match["value"] or match["hash"]):
            value = match["value"] or match["hash"]
            found.append(_Value((_Owner(of, name),), block.columns[at], value, match["unit"], bool(match["hash"])))
    return found


# --- lines ----------------------------------------------------------------------------------------


def _in_line(text: str, own: _Owner | None, block: _Block) -> Iterator[_Value]:
    owners: tuple[_Owner, ...] = (own,) if own else ()
    heading, end, counted, fresh = "", 0, "", False
    bare = True  # a value without a name may follow: the first of each owner
    named = own is not None
    found: list[_Value] = []
    # Kinds of owners are looked for in lower case; checksums are, too.
    for match in _TOKEN.finditer(text.lower()):
        gap, end = text[end : match.start()].lower(), match.end()
        if match.lastgroup and (several := _owners(match)):
            before = text[: match.start()].lower()
            if not fresh and not _PLACE.fullmatch(before) and (clause := _name(gap) or (not named and _name(before))):
                heading = clause
            owners, named, fresh, counted, bare = several, True, True, "", True
            continue
        fresh = False
        value, unit = match["value"] or match["hash"], match["unit"]
        if gap.rstrip().endswith("(") and not re.search(r"[a-z]", gap):
            continue  # the mean behind a value
        name = _name(gap)
        if (name in _COUNTED or name.rpartition(" ")[2] in _COUNTED - {"batch", "at"}) and unit is None:
            counted = name.rpartition(" ")[2]
            continue
        if not name and not bare:
            continue
        bare = bare and bool(name)
        name = name or counted or heading or (block.heading if named else "")
        counted = ""
        if name:
            found.append(_Value(owners, name, value, unit, bool(match["hash"])))
    if not named and not _STATISTICS.search(text):
        block.heading = text.lower().strip(_EDGES)[-MAX_LINE:]
    yield from found


def _owners(match: re.Match[str]) -> tuple[_Owner, ...]:
    """The owners that a token names; empty: it is a value."""
    if match["kind"]:
        kind = match["kind"]
        of = "replica" if kind.startswith("dp") else "gpu" if kind in ("gpu", "cuda", "device", "card") else "rank"
        return (_Owner(of, str(int(match["number"]))),)
    if match["short"]:
        return (_Owner("replica" if match["short"] == "dp" else "short", str(int(match["digit"]))),)
    if match["plural"]:
        of = "gpu" if match["plural"] == "gpus" else "rank"
        return tuple(_Owner(of, str(one)) for one in listed_numbers(match["numbers"], MAX_OWNERS))
    return ()


def _name(gap: str) -> str:
    """The name in the text before a value: its last clause. "": there is none."""
    for clause in reversed(_CLAUSE.split(gap[-4 * MAX_NAME :])):
        name = _FILLERS.sub(" ", clause).strip(_EDGES)
        if re.search(r"[a-z]", name):
            return " ".join(clause.strip(_EDGES).split())[-MAX_NAME:]
        if clause.strip(_EDGES + "."):
            return "" if not re.search(r"[a-z]", _FILLERS.sub(" ", gap)) else "?"
    return ""


# --- meaning --------------------------------------------------------------------------------------


@cache
def _kind(name: str, unit: str | None, fraction: bool = True) -> tuple[str, float | None] | None:
    """The kind of a figure, and the seconds in its unit; None: it is of no use. `fraction`: it is no whole number."""
    text = _NO_COMM.sub(" ", name.lower().replace("_", " ")).strip()
    factor = _TIME_UNIT.get((unit or "").split("/")[0])
    if unit and factor is None and unit not in ("%", "x"):
        return "rate", None
    inner = _UNIT_IN_NAME.search(text.rstrip(_EDGES.replace(")", "").replace("]", "")))
    if factor is None and inner:
        factor = _TIME_UNIT[inner[1]]
    in_brackets = re.search(r"[(\[]\s?(us|ms|s|sec|seconds)\s?[)\]]?", text)
    if factor is None and in_brackets:
        factor = _TIME_UNIT[in_brackets[1]]
    for kind in figure_kinds():
        if not kind.expression.search(text):
            continue
        if kind.kind == "none":
            return None
        if kind.time is None:
            return (kind.kind, None) if factor is None or kind.kind == "rate" else ("step", factor)
        if factor is not None or kind.time == "any" or _IS_TIME.search(text):
            return kind.kind, factor or 1.0
        return (kind.kind, 1.0) if kind.time == "fraction" and fraction else None
    return None


def _figures(value: _Value, step: int | None, line: int) -> Iterable[Figure]:
    meaning: tuple[str, float | None] | None
    if value.exact:
        (state,) = (one for one in figure_kinds() if one.kind == "state")
        # A hexadecimal number is no time, whatever else a sentence above it mentions.
        value = replace(value, name=_PRINTS.sub("", re.split(r"[.?!]\s", value.name)[-1]))
        common = state.expression.search(value.name.replace("_", " ")) and not _EACH_ITS_OWN.search(value.name)
        meaning = ("state", None) if common else None
    else:
        meaning = _kind(value.name, value.unit, "." in value.text or "e" in value.text)
    if meaning is None:
        return ()
    kind, factor = meaning
    text = value.text.replace(",", "")
    if not value.exact:
        number = float(text)
        if not isfinite(number):
            return ()
        text = f"{number * factor:.9g}" if factor is not None else text
    name = " ".join(re.sub(r"[\d_]+", " ", value.name.lower()).split())[:MAX_NAME]
    if not value.owners:
        if kind != "input" and kind not in SPENT:
            return ()
        return (Figure(kind, name, "", "", text, False, True, step, line),)
    text = redact(name, text)[:80]
    return [
        Figure(kind, name, one.of, one.name, text, value.exact, factor is not None, step, line) for one in value.owners
    ]
