"""Where ranks stand, in the words of a person: `rank 6 is stuck in loader.py:88 -> queue.get, the rest in all_reduce`.

A clause names ranks, or the rest of them, and a place: a call, a file with its line, or both. The places become stacks
of a few frames, of the ranks that no dump in the text shows. A sentence about what should be, or is not, counts for
nothing, and neither does a text without two places, one of which is a wait for peers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count

from hangdoc.evidence import Frame, limits
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._dump_ranks import RANKS_WITH_STACKS
from hangdoc.postmortem.readers._frames import ThreadBuilder, python_frame, stacks_record
from hangdoc.postmortem.readers._host_names import listed_numbers, written_number
from hangdoc.postmortem.readers._pasted_text import text_lines, without_time
from hangdoc.postmortem.readers.call_chains import stacks_in

MAX_TEXT = 2**18  # bytes: a person writes less
MAX_LINE = 600
MAX_RANKS = 4096
MAX_CLAUSES = 64
MAX_ARROWS = 1  # of one place
SEVERAL = 2  # ranks that "the others" stands for, if nothing says how many there are
_UNNAMED = -(3 * 10**6)  # made-up PIDs of these start here

_LIST = r"\d{1,5}(?:\s?(?:,(?: and)?|and|&|-|\u2013|to|through|\.\.|/)\s?(?:ranks? |r)?\d{1,5}){0,64}"
_STANDS = (
    r"(?:is|are|was|were|sits?|stands?|waits?|waiting|hangs?|hanging|hung|stuck|blocked|parked|spins?|spinning|idles?"
    r"|shows?|have|in|at|inside|all|both|still|already|just|simply|now|currently|always|only|never leaves?|stays?"
    r"|seems?)"
)
_WHO = re.compile(
    rf"(?<![\w.@/\[-])(?:(?:global )?(?:ranks?|processes|process|procs?|workers?|gpus?)[ _#]{{0,2}}(?P<ranks>{_LIST})"
    rf"|(?P<short>r\d{{1,5}}(?:\s?(?:-|\u2013|,|and)\s?r?\d{{1,5}}){{0,32}})(?=\s)"
    rf"|(?P<bare>\d{{1,5}}(?:(?:, | and |, and |-)\d{{1,5}}){{1,64}})(?= (?:all )?(?:sit|are|wait|hang|stand|block)\b)"
    r"|(?:all (?:of )?)?(?:the )?(?P<rest>other (?P<number>\d{1,4}|one|two|three|four|five|six|seven|eight|nine|ten"
    r"|fifteen|thirty-one)?(?: ?(?:ranks|processes|workers|gpus|ones))?|others|rest(?: of (?:them|the ranks))?"
    r"|remaining (?:ones|ranks|processes|workers|\w{1,10})|every(?:body|one) else|every other rank|all other ranks"
    r"|peers|(?P<count>two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|thirty-one"
    r"|sixty-three|\d{1,4}(?= of them))(?: of them)?"
    r"(?= (?:have|show|sit|wait|hang|stand|are (?:in|at|stuck|all|both))\b)))"
    rf"(?: ?\((?:ranks? )?(?P<these>{_LIST})\))?(?: ?\([^()\n]{{1,40}}\))?"
    r"(?P<links>(?:\s{0,3}(?::|=|\||-+>|\u2192|\u2014|\u2013|,)\s{0,3}|\s{1,12}){1,2}"
    rf"(?:{_STANDS}\b[\s,:]{{0,3}}){{0,6}})",
    re.IGNORECASE,
)
_NO_STATEMENT = re.compile(
    r"\b(?:not|never|cannot|should|would|could|might|whether|if|expected|supposed|fine|ok|okay|finished|done|returned"
    r"|returns|passed|passes|completed|reached|reaches|before|until|unless|why|first|used to|yesterday|earlier|raised"
    r"|raises|crash\w*|failed|fails|died|killed|exited|timed out|timeout|error|loss|step \d|it/s"
    r"|usually|sometimes|often|always the|last one)\b|n't\b|\?",
    re.IGNORECASE,
)
_CONDITION = re.compile(  # in front of the ranks, in the same sentence
    r"\b(?:if|when(?:ever)?|whether|suppos\w{1,4}|assum\w{1,4}|imagine|once|unless|should|would|could|expect\w{0,3})\b",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"\.\s|;\s|\.$|!\s")
_ARROW = re.compile(r"\s(?:-+>|=+>|>|\u2192)\s")
_SITE = re.compile(r"(?P<file>(?:[\w.+<>-]{1,80}/){0,20}[\w+-]{1,80}\.pyx?)(?::| line |, line | L)(?P<line>\d{1,7})")
_BEFORE_SITE = re.compile(r"([A-Za-z_][\w.]{0,80})(?:\(\))?[`'\"]?\s{0,2}(?:\(|\[|@|, | at | in )?\s{0,2}[`'\"]?$")
_BEHIND_SITE = re.compile(r"^[`'\"]?[)\]]?\s{0,3}(?:in |-+> ?|\u2192 ?|:|\()?\s{0,2}([A-Za-z_][\w.]{0,80})")
_TORCH = "torch/distributed/distributed_c10d.py"
_COLLECTIVES = re.compile(
    r"(?<![A-Za-z])(?:P?MPI_I?|p?nccl|dist\.|comm\.|hvd\.|torch\.distributed\.)?"
    r"(?P<name>all_?-?reduce|all_?-?gather(?:_\w{1,40})?|reduce_?-?scatter(?:_\w{1,40})?|all_?-?to_?-?all\w{0,20}"
    r"|barrier|broadcast(?:_\w{1,40})?|monitored_barrier)(?![A-Za-z])",
    re.IGNORECASE,
)
_NAMES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "alltoall": "all_to_all",
}  # fmt: skip
# What else people write, and a function that hangdoc knows for it. Nobody waits for peers there.
_PLACES = tuple(
    (re.compile(pattern, re.IGNORECASE), function, file)
    for pattern, function, file in (
        (r"queue\.get|\b_(?:try_get|next|get)_data\b|\bnext\(|\bdata ?loader\b|\b__next__\b|\bworker_loop\b",
         "__next__", "torch/utils/data/dataloader.py"),
        (r"\btorch\.save\b|\bsave_checkpoint\b|\bwriting (?:a |the )?checkpoint|\bsaving\b|\bcheckpointing\b",
         "save", "torch/serialization.py"),
        (r"\btorch\.load\b|\bloading (?:a |the )?checkpoint|\bload_checkpoint\b", "load", "torch/serialization.py"),
        (r"\bi?pdb\b|\bbreakpoint\(?", "interaction", "pdb.py"),
        (r"\binput\(\)", "input", "script.py"),
        (r"\block\.acquire\b|\bacquire\(", "acquire", "threading.py"),
        (r"\bdestroy_process_group\b", "destroy_process_group", _TORCH),
        (r"\beval(?:uat\w{1,4})?\b|\bvalidat\w{1,4}\b", "evaluate", "script.py"),
    )
)  # fmt: skip
_WORLD = re.compile(r"(?<![\w.])(\d{1,5}) (?:ranks|gpus|processes|workers)\b", re.IGNORECASE)
_DUMP = re.compile(r"\bThread (?:0x|\d)|^#\d|\(gdb\)|\(most recent call |\w \(\S{1,300}\.py:\d+\)", re.MULTILINE)
_LOGGED = re.compile(
    r"\d\d:\d\d:\d\d|\b(?:INFO|WARN|WARNING|ERROR|DEBUG|NCCL)\b|Traceback|File \"|\[[EWI]\d{4}"
    r"|\w(?:Error|Exception)\b|OpType|[Ww]atchdog|\[Rank|CollectiveFingerPrint|\[rank ?\d|<-+|\u2190"
)


@dataclass(frozen=True, slots=True)
class _Claim:
    """Ranks, and where they stand; None: the rest of them."""

    ranks: tuple[int, ...] | None
    number: int | None  # of ranks in the rest, if the clause says it
    frames: tuple[Frame, ...]  # innermost first
    waits: bool  # for its peers


class ToldPlacesReader:
    name = "places in words"
    order = 36
    help = "py-spy dump --pid PID of every rank says more"

    def recognises(self, source: Source) -> bool:
        if source.size > MAX_TEXT or _WHO.search(source.head_text) is None:
            return False
        lines = source.head_text.split("\n")
        claims = [claim for text in lines for claim in _claims(without_time(text))]
        several = len({claim.frames for claim in claims}) > 1 or _DUMP.search(source.head_text) is not None
        return several and any(claim.waits for claim in claims) and not stacks_in(lines)

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        lines = list(text_lines(source, context))
        claims = [claim for text in lines for claim in _claims(without_time(text))][:MAX_CLAUSES]
        dumped: set[int] = context.shared.get(RANKS_WITH_STACKS, set())
        places = {claim.frames for claim in claims}
        if not any(claim.waits for claim in claims) or len(places) + bool(dumped) < 2:
            return
        for process, frames in _processes(claims, dumped, _world(lines)).items():
            thread = ThreadBuilder(0, "MainThread")
            for frame in frames:
                thread.add(frame)
            if record := stacks_record([thread]):
                yield Piece(process, "stacks", record)


def _world(lines: Iterable[str]) -> int | None:
    """The only number of ranks that the text gives; None: none, or several."""
    found = {int(size) for text in lines for size in _WORLD.findall(text[:MAX_LINE])}
    return found.pop() if len(found) == 1 else None


def _processes(claims: list[_Claim], dumped: set[int], world: int | None) -> Mapping[ProcessRef, tuple[Frame, ...]]:
    """The stacks of the ranks without a dump; the first claim of each counts."""
    found: dict[ProcessRef, tuple[Frame, ...]] = {}
    named = {rank for claim in claims for rank in claim.ranks or ()} | dumped
    for claim in claims:
        for rank in claim.ranks or ():
            if rank not in dumped:
                found.setdefault(ProcessRef(rank), claim.frames)
    unnamed = count(_UNNAMED, -1)
    for claim in [claim for claim in claims if claim.ranks is None][:1]:
        size = len(named) + claim.number if claim.number else world
        rest = sorted(set(range(size)) - named) if size and size <= limits.MAX_RANKS and named else []
        if rest and (not claim.number or len(rest) == claim.number):
            found.update({ProcessRef(rank): claim.frames for rank in rest[:MAX_RANKS]})
        else:
            found.update({ProcessRef(pid=next(unnamed)): claim.frames for _ in range(claim.number or SEVERAL)})
    return found


def _claims(text: str) -> Iterator[_Claim]:
    """The claims in a line."""
    if not text.strip() or len(text) > MAX_LINE or _LOGGED.search(text):
        return
    found = list(_WHO.finditer(text))[:MAX_CLAUSES]
    for place, who in enumerate(found):
        behind = found[place + 1].start() if place + 1 < len(found) else len(text)
        clause = text[who.end() : behind]
        if ending := _SENTENCE_END.search(clause):
            clause = clause[: ending.start()]
        before = _SENTENCE_END.split(text[: who.start()])[-1]
        if _CONDITION.search(before):
            continue
        stated = re.search(r"[A-Za-z:=|>\u2192]|\s{2}", who["links"]) is not None
        if not stated or not clause.strip() or _is_sequence(clause) or _NO_STATEMENT.search(who["links"] + clause):
            continue
        if (frames := _frames(clause)) is not None:
            listed = who["ranks"] or who["short"] or who["bare"] or who["these"]
            ranks = _numbers(listed) if listed else None
            if listed and not ranks:
                continue
            yield _Claim(ranks, written_number(who["number"] or who["count"] or ""), frames[0], frames[1])


def _is_sequence(clause: str) -> bool:
    """True for steps in turn: `preprocess -> save -> barrier`, `barrier -> load`. A place ends in what is called."""
    parts = _ARROW.split(clause)
    return len(parts) > MAX_ARROWS + 1 or (len(parts) > 1 and not (_COLLECTIVES.search(parts[-1]) or _known(parts[-1])))


def _known(clause: str) -> tuple[str, str] | None:
    """The function for a place that is no wait for peers."""
    return next(((name, file) for pattern, name, file in _PLACES if pattern.search(clause)), None)


def _numbers(text: str) -> tuple[int, ...]:
    ranks = listed_numbers(re.sub(r"ranks? |r(?=\d)", "", text, flags=re.IGNORECASE), MAX_RANKS)
    return ranks if all(rank < limits.MAX_RANKS for rank in ranks) else ()


def _frames(clause: str) -> tuple[tuple[Frame, ...], bool] | None:
    """The frames of a place, innermost first, and whether it is a wait for peers; None: no place is known."""
    sites = list(_SITE.finditer(clause))
    collective = list(_COLLECTIVES.finditer(clause))
    inner: list[Frame] = []
    if collective:
        inner = [python_frame(_collective(collective[-1]["name"]), _TORCH, _line_in_torch(sites))]
    elif known := _known(clause):
        inner = [python_frame(*known, None)]
    own = [site for site in sites if "torch/" not in site["file"]]
    outer = [_of_site(clause, site, inner) for site in own[:4]]
    if not inner and not outer:
        return None
    return (*inner, *outer), bool(collective)


def _collective(name: str) -> str:
    plain = name.lower().replace("-", "_")
    return _NAMES.get(plain.replace("_", ""), plain)


def _line_in_torch(sites: list[re.Match[str]]) -> int | None:
    return next((int(site["line"]) for site in sites if site["file"].endswith("distributed_c10d.py")), None)


def _of_site(clause: str, site: re.Match[str], inner: list[Frame]) -> Frame:
    """The frame at a file and line, with the function beside it that is not the operation."""
    called = {frame.function for frame in inner}
    beside = (_BEHIND_SITE.search(clause[site.end() :]), _BEFORE_SITE.search(clause[: site.start()]))
    names = (match[1] for match in beside if match)
    name = next((one for one in names if _is_function(one) and not _COLLECTIVES.fullmatch(one)), None)
    return python_frame(name if name and name not in called else "<unknown>", site["file"], int(site["line"]))


def _is_function(word: str) -> bool:
    return "_" in word or (word.isidentifier() and word.lower() not in _ENGLISH)


_ENGLISH = frozenset(
    {"in", "at", "from", "the", "a", "an", "is", "are", "on", "and", "of", "to", "by", "for", "with", "called", "calls"}
    | {"line", "still", "just", "waiting", "stuck", "it", "its", "while"}
)

READER = ToldPlacesReader()
