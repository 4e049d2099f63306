"""Figures of ranks, GPUs or hosts in a text: in tables, in lists under a heading, in lines of a rank or of several.

A line is a row of a table (`rank_tables`), a list of the values of all ranks (`rank_lists`), or it is read into owners
(`rank 3`, `[rank3]`, `gpu07:`) and values (`fwd 0.84s`). A value belongs to the owner before it, else to the prefix of
its line. Its name is the text before it, else the heading of its line or block. figure_kinds.yaml says which names are
of use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

from msgspec import structs

from hangdoc.evidence.figures import Figure, Figures
from hangdoc.postmortem.readers._host_context import HostContext
from hangdoc.postmortem.readers._host_names import NAME, is_host_name, listed_numbers
from hangdoc.postmortem.readers._logs.breakdowns import Breakdowns
from hangdoc.postmortem.readers._logs.comparisons import Comparisons
from hangdoc.postmortem.readers._logs.cpu_texts import CpuTexts
from hangdoc.postmortem.readers._logs.extremes import Extremes
from hangdoc.postmortem.readers._logs.figure_kinds import (
    EACH_ITS_OWN,
    SPENT,
    UNIT,
    Meaning,
    figure_kinds,
    is_known,
    meaning,
)
from hangdoc.postmortem.readers._logs.figure_values import GPU, HEX, HOST, RANK, REPLICA, SHORT, Owner, Value
from hangdoc.postmortem.readers._logs.gpu_links import GpuLinks
from hangdoc.postmortem.readers._logs.gpu_tables import GpuTables
from hangdoc.postmortem.readers._logs.parallelism import Parallelism
from hangdoc.postmortem.readers._logs.prefixes import Line, PrefixStyle, parse
from hangdoc.postmortem.readers._logs.printed_lines import RESUMED, step_of_total
from hangdoc.postmortem.readers._logs.profiles import Profiles
from hangdoc.postmortem.readers._logs.rank_lists import RankLists
from hangdoc.postmortem.readers._logs.rank_reports import RankReports
from hangdoc.postmortem.readers._logs.rank_sections import RankSections
from hangdoc.postmortem.readers._logs.rank_tables import RankTables
from hangdoc.postmortem.readers._logs.unequal import Unequals
from hangdoc.postmortem.readers._logs.value_counts import ValueCounts
from hangdoc.postmortem.readers._placement.placement import Placement, placement_of
from hangdoc.redaction.text import redact

MAX_BYTES = 128 * 2**10  # searched at the end of a file
MAX_LINES = 2_000
MAX_LINE = 1_000  # characters
MAX_FIGURES = 10_000
MAX_OWNERS = 1_024  # of one value: `ranks 0-7`
MAX_NAME = 60  # characters
LONG = 7  # digits that two ranks do not share by chance
LEAST_SIZES = 3  # powers of two, which are no ranks but sizes

_TOKEN = re.compile(
    r"(?<![A-Za-z0-9_.])(?P<plural>ranks|gpus|processes|rank(?= ?\d{1,6} ?(?:\.\.|-|\u2013) ?\d))[ :=\[(]{1,3}"
    r"(?P<numbers>\d{1,6}(?:(?: ?(?:,|-|\u2013|&|and|to|\.\.) ?){1,2}\d{1,6}){0,64})\]?(?![\w/]|\.\d)"
    r"|(?<![A-Za-z0-9_.])(?<!/s/)"
    r"(?P<kind>(?:global|world)[ _-]?rank|dp[ _-]?rank|rank|process|proc|gpu|cuda|device|card)s?"
    r"[\"']?[ _:=#\[(]{0,3}[\"']?(?P<number>\d{1,6})(?:\]|\))?(?!\w|/\d|\.\d|-\d)"
    r"|(?:(?<![A-Za-z0-9_.:/-])(?P<short>dp|rk|r|p)|(?<=[\"'])(?P<key>rk|gr|r)[\"'] ?: ?)(?P<digit>\d{1,5})(?![\w./-])"
    r"|(?:(?<![\w.:/@#+-])|(?<=[\"']:))(?P<value>-?\d{1,15}(?:,\d{3}){0,4}(?:\.\d{1,20})?(?:[eE][+-]?\d{1,3})?)"
    rf"(?: ?(?P<unit>{UNIT})(?![\w/]|[ =:]{{1,3}}\d))?(?![\w:/]|\.\d|-\d)"
    rf"|(?<![\w.:/-])(?P<hash>{HEX})(?![\w/-]|\.\w)"
)
# Numbers of something else than the ranks of the job.
_OTHER = re.compile(
    r"\b(?:local|node|group|tp|pp|cp|ep|tensor|pipeline|expert)[ _-]?(?:model[ _-])?(?:parallel[ _-])?rank"
    r"[\"']?[ :=#]{0,3}\d{1,6}",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"[|;,\u2022{}]|\s{2,}|:\s| - |->")
_FILLERS = re.compile(
    r"\b(?:about|approx|took|takes?|taken|is|are|was|were|at|in|done|finished|each|all|around|between|of|the|to|avg)\b"
)
_BY_RANK = re.compile(r"\W*(?:by|per|for|on|of)(?: each)? ranks?\W*")
_EDGES = " \t/:=([{<>\"'~`*_+]})|,;\u2248-"
_STEP = re.compile(
    r"\b(?:global[_ ]?)?(?:step|iter(?:ation)?|it|update)s?\b[\s:=#\"'\[]{1,12}(\d{1,9})(?![\d.])"
    r"(?! ?(?:ms|s|sec|seconds)\b)",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"\bepoch\W{1,4}(\d{1,6})(?![\d.])", re.IGNORECASE)
_PLACE = re.compile(  # how far the job is, which names no figure: `step 400`, `epoch 3 iter 200/500`
    r"\W{0,8}(?:(?:global[ _]?)?(?:step|iter(?:ation)?|it|update|batch|epoch)s?[\s:=#\"'\[(]{1,12}"
    r"\d{1,9}(?:/\d{1,9})?\W{0,8}){1,4}"
)
_PRINTS = re.compile(r"^(?:and |so |then )?(?:i|we) (?:also |now |then )?(?:print|log|dump|compute|compared?)(?:ed)? ")
_COUNTED = frozenset({"step", "steps", "iter", "iters", "iteration", "it", "update", "batch", "epoch", "at"})
_SAYS_RANK = re.compile(r"\s{0,4}[\[(]?(?:world_|global_)?rank[ =:]{1,2}(\d{1,6})\b", re.IGNORECASE)
_STATISTICS = re.compile(r"\b(?:min|max|avg|mean|median|std|p50|p99|slowdown)\b", re.IGNORECASE)
_LEFT_OUT = re.compile(r"[\s\[\]|]{0,20}(?:\.{2,10}|\u2026)[\s\[\]|]{0,20}")  # rows of a list or table
_HOST_ROW = re.compile(  # of a list below a heading, as in `throughput per node (tokens/s)`
    rf"\W{{0,8}}({NAME})[\s:=|]{{1,40}}(\d{{1,15}}(?:,\d{{3}}){{0,4}}(?:\.\d{{1,12}})?)(?: ?({UNIT}))?\W*"
)
_NORM = re.compile(r"(?<![\w|])(?:\|{1,2}|\u2016) ?(\w{1,24}(?:\.\w{1,24}){0,8}) ?(?:\|{1,2}|\u2016)(?=[\s=:]|$)")
_NORM_OF = re.compile(_NORM.pattern.replace(r"(?=[\s=:]|$)", r"(?=[\s=:]{1,4}\d)"))  # followed by its value
_BY_LENGTH = re.compile(r"\bover \d{1,9}(?:\.\d{1,3})? (?:frames|tokens)\b")  # a batch takes as many samples as fit
_OF_PARTS = re.compile(
    r"\b(checksum|digest|fingerprint|hash|md5|sha(?:1|256)?|norm|sum)(?:s|es)? (?:of|over|for) [^.\n]{0,40}?"
    r"\b(?:param(?:eter)?s?|weights?|(?:sub)?(?:modules?|models?|networks?)|layers?|replicas?)\b"
    r"|\b(sum)\(p(?:aram)?\.[^\n]{0,60}\bper (?:sub)?(?:modules?|models?|networks?|layers?|parameters?)\b"
)
_PARAMETER = re.compile(r"\b(\w{2,40}) ?= ?(?:torch\.)?nn\.Parameter\(")
_FENCE = re.compile(r"\s{0,20}(?:`{3}|~{3})")
_SERIES = re.compile(r"(?:tensor|array)\(\[([-\d.,\s e+]{3,300})\]")
_HOST_OF_OWNER = re.compile(rf"\s?(?:\(|on |@ ?)(?:host )?({NAME})\)?(?=[\s:=,|])")
_OF_HOSTS = re.compile(r"\b(?:hosts?|nodes?|machines?|servers?|pods?|hostnames?)\b", re.IGNORECASE)
_HOST_NUMBER = re.compile(r"(?:host|node|machine|server)[_-]?\d{1,6}", re.IGNORECASE)
_OF_NETWORK = re.compile(r"\b(?:links?|ports?|nics?|bandwidth|bus ?bw|[kmg]bit|[kmg]bps|[kmg]b/s)\b", re.IGNORECASE)


@dataclass(slots=True)
class _Block:
    """What the lines above say about the next ones."""

    heading: str = ""
    announced: str | None = None  # what values of each part of a model are, in a heading further up: "sum"
    parameters: set[str] = field(default_factory=set)  # names that source code in the text gives to parameters
    tables: RankTables = field(default_factory=RankTables)
    sections: RankSections = field(default_factory=RankSections)
    lists: RankLists = field(default_factory=RankLists)

    def set_heading(self, heading: str) -> None:
        self.heading = heading
        self.announced = _common_of_parts(heading) or self.announced

    def common(self) -> str | None:
        """What replicas have in common, by the heading, or by one above headings that only tell the step."""
        return self.announced if _PLACE.fullmatch(self.heading) else _common_of_parts(self.heading)

    def step(self) -> int | None:
        """The step that the heading tells, and nothing else."""
        found = _STEP.search(self.heading) if _PLACE.fullmatch(self.heading) else None
        return int(found[1]) if found else None


def read_figures(
    tail: bytes, lines: int, style: PrefixStyle, source: str, placement: Placement | None = None
) -> Figures | None:
    """The figures in the last bytes of a file that has `lines` lines in total. None: there are none to compare.

    `placement`: where the whole text says that the ranks run; default: what its end says.
    """
    texts = tail[-MAX_BYTES:].decode("utf-8", "replace").split("\n")[-MAX_LINES:]
    first = max(lines - len(texts) + (1 if texts and texts[-1] else 2), 1)
    found: list[Figure] = []
    unknown: list[Figure] = []  # of names that mean nothing
    block = _Block()
    gpus, cpus, links, profiles, reports = GpuTables(), CpuTexts(), GpuLinks(), Profiles(), RankReports()
    extremes, breakdowns, parallelism, comparisons = Extremes(), Breakdowns(), Parallelism(), Comparisons()
    unequals, counts = Unequals(), ValueCounts()
    hosts = HostContext("\n".join(texts).encode())
    ranks: dict[tuple[str | None, int], int] = {}  # by host and PID, as a line of the process says
    for number, raw in enumerate(texts, first):
        if len(raw) > MAX_LINE or len(found) >= MAX_FIGURES:
            continue
        parallelism.feed(raw)
        line = parse(raw, style)
        host = line.host or hosts.at(number - first + 1)
        gpus.feed(line.text, host, number)
        cpus.feed(line.text, line.rank, line.host, host, number)
        links.feed(line.text, host, number)
        profiles.feed(line.text or raw, line.rank, number)
        reports.feed(line.text, number)
        extremes.feed(line.text, number)
        unequals.feed(line.text, number)
        counts.feed(line.text, number)
        comparisons.feed(line.text if line.rank is None else raw.strip(), number)
        breakdowns.feed(line.text, line.rank is not None, number)
        if RESUMED.search(line.text):
            continue  # the figures of an earlier run
        found_step = _STEP.search(line.text)
        step = int(found_step[1]) if found_step else step_of_total(line.text)
        step = block.step() if step is None else step
        if raw.count("[rank") > 1:  # the rank of the first is no prefix of them all
            line = Line(raw.strip())
        if line.pid is not None:
            if line.rank is None and (own_rank := _SAYS_RANK.match(line.text)):
                ranks[line.host, line.pid] = int(own_rank[1])
            line = replace(line, rank=ranks.get((line.host, line.pid), line.rank))
        if line.rank is None and line.host is None and host is not None:
            line = replace(line, host=host)  # of the heading above
        block.parameters |= {one[1].lower() for one in _PARAMETER.finditer(raw)}
        for value in _values(line, raw, block, number - first + 1 < len(texts)):
            trained = value.name.rpartition(" ")[2] in block.parameters
            found += _figures(replace(value, name=f"{value.name} weights") if trained else value, step, number)
            if len(unknown) < MAX_FIGURES:
                unknown += _long_fractions(value, _epoch(line.text) if step is None else step, number)
    profiles.end()
    breakdowns.end()
    own = (gpus, cpus, links, profiles, reports, breakdowns, comparisons)
    kept = [
        *_comparable([*found, *_replicated(unknown)][:MAX_FIGURES]),
        *(figure for one in own for figure in one.found),
        *extremes.figures(),
        *unequals.figures(),
        *counts.found,
    ]
    if not kept:
        return None
    placement = placement or placement_of("\n".join(texts))
    kept = _of_ranks(kept, placement)
    said = (placement.index_is_rank, placement.ordinal_is_rank, parallelism.staged, parallelism.sharded)
    return Figures(tuple(kept), source, *said, _ranks_of_gpus(kept, placement))


def _of_ranks(found: Sequence[Figure], placement: Placement) -> list[Figure]:
    """The figures of hosts as those of their ranks, if each host that has a figure has one rank."""
    ranks = {one.owner: placement.rank_alone_on(one.owner) for one in found if one.of == HOST}
    if not ranks or None in ranks.values() or any(one.of == RANK for one in found):
        return list(found)
    return [structs.replace(one, of=RANK, owner=str(ranks[one.owner])) if one.of == HOST else one for one in found]


def _ranks_of_gpus(found: Iterable[Figure], placement: Placement) -> dict[str, int]:
    """The rank of each GPU that owns a figure, where the text says so."""
    ranks = {}
    for owner in dict.fromkeys(one.owner for one in found if one.of == "gpu"):
        host, _, gpu = owner.rpartition("/")
        if (rank := placement.rank_of_gpu(host, gpu)) is not None:
            ranks[owner] = rank
    return ranks


def _comparable(found: Sequence[Figure]) -> list[Figure]:
    """Without numbers that are no ranks (`p50`, `p99`; ranks 4, 8, 64 of LoRA), and kinds that only one owner has."""
    named = [one for one in found if one.of not in (SHORT, RANK, GPU)]
    for of in (SHORT, RANK, GPU):
        part = [one for one in found if one.of == of]
        numbers = {int(one.owner) for one in part}
        if of == SHORT and (len(numbers) < 2 or max(numbers) - min(numbers) + 1 != len(numbers)):
            continue
        if len(numbers) >= LEAST_SIZES and all(one and one & (one - 1) == 0 for one in numbers):
            continue
        named += [structs.replace(one, of=RANK) for one in part] if of == SHORT else part
    named.sort(key=lambda one: one.line)
    owners: dict[tuple[str, str], set[str]] = {}
    for one in named:
        owners.setdefault((one.kind, one.of), set()).add(one.owner)
    metered = {one.line for one in named if one.kind == "input"} & {one.line for one in named if one.kind in SPENT}
    return [one for one in named if len(owners[one.kind, one.of]) > 1 or one.line in metered]


def _values(line: Line, raw: str, block: _Block, whole: bool) -> Iterator[Value]:
    """The values in a line; updates the block. A line that is not whole may be cut within its last number."""
    text = _norms_named(_OTHER.sub(" ", line.text))
    if not text.strip():
        block.tables.close()
        return
    if _LEFT_OUT.fullmatch(text):
        return
    if (row := block.tables.feed(text, raw, block.heading)) is not None:
        if not row and re.search("[A-Za-z]", text):
            block.set_heading(text.lower().strip(_EDGES))  # the head of a table, or of a list
        yield from row
        return
    host = _HOST_ROW.fullmatch(text) if whole else None
    of_hosts = host and (_OF_HOSTS.search(block.heading) or _HOST_NUMBER.fullmatch(host[1]))
    if host and of_hosts and is_host_name(host[1]) and not _OF_NETWORK.search(block.heading):
        yield Value((Owner(HOST, host[1]),), block.heading, host[2], host[3])
        return
    if line.rank is None and (several := block.lists.feed(text, block.heading)):
        yield from several
        return
    section = block.sections.feed(text)
    own = Owner(RANK, str(line.rank)) if line.rank is not None else section
    if own is None and line.host:
        own = Owner(HOST, line.host)
    yield from _in_line(text, own, block)


def _norms_named(text: str) -> str:
    """`|w| 61.2` and `||w||` as `norm(w)`, unless the bars are those of a table."""
    if "|" not in text and "\u2016" not in text:
        return text
    named = _NORM.sub(r" norm(\1) ", text)
    return named if "|" not in named else _NORM_OF.sub(r" norm(\1) ", text)


# --- lines ----------------------------------------------------------------------------------------


def _in_line(text: str, own: Owner | None, block: _Block) -> Iterator[Value]:
    owners: tuple[Owner, ...] = (own,) if own else ()
    heading, end, counted, fresh = "", 0, "", False
    bare = True  # a value without a name may follow: the first of each owner
    named = own is not None
    found: list[Value] = []
    if series := _SERIES.search(text):
        before = text[: series.start()].lower()
        marks = [(one, match.end()) for match in _TOKEN.finditer(before) if (one := _owners(match))]
        whose, start = marks[-1] if marks else (owners, 0)
        if whose:
            yield Value(whose, before[start:].strip(_EDGES)[-MAX_NAME:], " ".join(series[1].split()), number=False)
        return
    # Kinds of owners are looked for in lower case; checksums are, too.
    for match in _TOKEN.finditer(text.lower()):
        gap, end = text[end : match.start()].lower(), match.end()
        if fresh and (place := _HOST_OF_OWNER.match(gap)) and is_host_name(place[1]):
            gap = gap[place.end() :]
        if match.lastgroup and (several := _owners(match)):
            before = text[: match.start()].lower()
            if not fresh and not _PLACE.fullmatch(before) and (clause := _name(gap) or (not named and _name(before))):
                heading = clause
            owners, named, fresh, counted, bare = several, True, True, "", True
            continue
        fresh = False
        value, unit = match["value"] or match["hash"], match["unit"]
        if value is None:
            continue  # an owner of no believable number, as of `rank 02025-10-21T08:40`, where two lines are glued
        if gap.rstrip().endswith("(") and not re.search(r"[a-z]", gap):
            continue  # the mean behind a value
        name = _name(gap)
        if (name in _COUNTED or name.rpartition(" ")[2] in _COUNTED - {"batch", "at"}) and unit is None:
            counted = name.rpartition(" ")[2]
            continue
        if (not name and not bare) or (name == "batch size" and _BY_LENGTH.search(text)):
            continue
        bare = bare and bool(name)
        name = name or counted or heading or (block.heading if named else "")
        counted = ""
        if named and (common := block.common()) and not is_known(name):
            name = f"{common} of the weights of {name}"
        if name:
            if name.startswith("norm(") and ")" not in name:
                name += ")"
            found.append(Value(owners, name, value, unit, bool(match["hash"]), None, not match["hash"]))
    if not _FENCE.match(text):
        last = _last_sentence(text)
        if not named and not (found and _STATISTICS.search(text)):
            block.set_heading(text.lower().strip(_EDGES)[-MAX_LINE:])
        elif last != text and last.rstrip().endswith(":") and not any(map(_owners, _TOKEN.finditer(last.lower()))):
            block.set_heading(last.lower().strip(_EDGES))
    yield from found


def _last_sentence(text: str) -> str:
    return re.split(r"[.?!]\s", text)[-1]


def _common_of_parts(heading: str) -> str | None:
    """`checksum` below `I print a checksum of both submodules`: what replicas have in common, of each part."""
    last = _last_sentence(heading)
    found = _OF_PARTS.search(last)
    return found[1] or found[2] if found and not EACH_ITS_OWN.search(last) else None


def _owners(match: re.Match[str]) -> tuple[Owner, ...]:
    """The owners that a token names; empty: it is a value."""
    if match["kind"]:
        kind = match["kind"]
        of = REPLICA if kind.startswith("dp") else GPU if kind in ("gpu", "cuda", "device", "card") else RANK
        return (Owner(of, str(int(match["number"]))),)
    if match["short"] or match["key"]:
        return (Owner(REPLICA if match["short"] == "dp" else SHORT, str(int(match["digit"]))),)
    if match["plural"]:
        of = GPU if match["plural"] == "gpus" else RANK
        return tuple(Owner(of, str(one)) for one in listed_numbers(match["numbers"], MAX_OWNERS))
    return ()


def _name(gap: str) -> str:
    """The name in the text before a value: its last clause. "": there is none."""
    for clause in reversed(_CLAUSE.split(gap[-4 * MAX_NAME :])):
        if _BY_RANK.fullmatch(clause):
            continue
        name = _FILLERS.sub(" ", clause).strip(_EDGES)
        if re.search(r"[a-z]", name):
            return " ".join(clause.strip(_EDGES).split())[-MAX_NAME:]
        if clause.strip(_EDGES + "."):
            return "" if not re.search(r"[a-z]", _FILLERS.sub(" ", gap)) else "?"
    return ""


# --- meaning --------------------------------------------------------------------------------------


def _figures(value: Value, step: int | None, line: int) -> Iterable[Figure]:
    known = _common(value) if value.exact else meaning(value.name, value.unit, "." in value.text or "e" in value.text)
    if known is None or sum(map(str.isdigit, value.text)) < known.digits:
        return ()
    text = value.text.replace(",", "") if value.number else value.text
    if value.number:
        number = float(text)
        if not isfinite(number):
            return ()
        text = f"{number * known.factor:.9g}" if known.factor is not None else text
    elif known.kind != "state":
        return ()
    said = _last_sentence(value.name).partition(",")[0] if len(value.name) > MAX_NAME else value.name
    name = " ".join(re.sub(r"(?<!md)(?<!sha)[\d_]+", " ", said.lower()).split())[:MAX_NAME]
    step = value.step if value.step is not None else step
    if not value.owners:
        timed = known.factor is not None and (known.kind == "input" or known.kind in SPENT)
        return (Figure(known.kind, name, "", "", text, False, True, step, line),) if timed else ()
    text = redact(name, text)[:80]
    timed = known.factor is not None
    if known.kind.startswith("gpu ") and any(one.of not in (GPU, RANK) for one in value.owners):
        return ()
    return [Figure(known.kind, name, one.of, one.name, text, value.exact, timed, step, line) for one in value.owners]


def _long_fractions(value: Value, step: int | None, line: int) -> Iterable[Figure]:
    """A number whose name means nothing, as a state: with so many digits, two ranks share it for a reason."""
    text = value.text.replace(",", "")
    if not value.number or value.unit or step is None or "." not in text or is_known(value.name):
        return ()
    if sum(map(str.isdigit, text)) < LONG:
        return ()
    name = value.name[:MAX_NAME]
    return [Figure("state", name, one.of, one.name, text, step=step, line=line) for one in value.owners]


def _epoch(text: str) -> int | None:
    found = _EPOCH.search(text)
    return int(found[1]) if found else None


def _replicated(unknown: Sequence[Figure]) -> list[Figure]:
    """Those of names whose first value is equal on all their ranks: what replicas have in common, such as `enc`.

    And those in lines with such a value that changes and stays equal, with as many digits behind the point: sums of
    parts of one model, of which one part is replicated and the other is not.
    """
    by_name: dict[tuple[str, str], list[Figure]] = {}
    for one in unknown:
        by_name.setdefault((one.of, one.name), []).append(one)
    found, others = [], []
    shared: dict[int, int] = {}  # line of a value that changes and stays equal -> digits behind its point
    for figures in by_name.values():
        begin = [one for one in figures if one.step == figures[0].step]
        owners = {one.owner for one in figures}
        if len(owners) > 1 and {one.owner for one in begin} == owners and len({one.value for one in begin}) == 1:
            found += figures
            values, steps = {one.value for one in figures}, {one.step for one in figures}
            if len(values) > 1 and len({(one.step, one.value) for one in figures}) == len(steps):
                shared |= {one.line: _decimals(one) for one in figures}
        else:
            others.append(figures)
    for figures in others:
        if all(shared.get(one.line) == _decimals(one) for one in figures):
            found += figures
    return found


def _decimals(figure: Figure) -> int:
    """Digits behind the point of a value."""
    return len(figure.value.partition(".")[2])


def _common(value: Value) -> Meaning | None:
    """The meaning of a hexadecimal number. It is no time, whatever else a sentence above it mentions."""
    for sentence in reversed(re.split(r"[.?!]\)?\s", value.name)):
        name = _PRINTS.sub("", sentence).replace("_", " ").lower()
        if any(one.expression.search(name) for one in figure_kinds() if one.kind == "state"):
            return None if EACH_ITS_OWN.search(name) else Meaning("state")
        if EACH_ITS_OWN.search(name):
            return None
    return None
