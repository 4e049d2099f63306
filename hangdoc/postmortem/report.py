"""The verdict of a job that has ended, from its files, by the same analyses and playbooks as a live watch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import merge
from itertools import chain, islice
from pathlib import Path

from hangdoc.analysis.facts import Facts
from hangdoc.analysis.logs import rank_signs, terms
from hangdoc.diagnose import Judge, load_judge
from hangdoc.errors import HangdocError
from hangdoc.evidence import Snapshot
from hangdoc.evidence.logs import Logs, Terms
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.evidence.snapshot import of_job
from hangdoc.postmortem.assemble import snapshots
from hangdoc.postmortem.readers import EvidenceItem, ReadContext, Reader, Source, load_readers
from hangdoc.postmortem.readers._input_file import HEAD_BYTES, find_sources
from hangdoc.postmortem.readers._text_source import (
    MAX_CLEANED,
    OPEN_ENDS,
    TextSource,
    is_text,
    marked_parts,
    placement_in,
    text_source,
)
from hangdoc.postmortem.readers._torchrun import assign_nodes
from hangdoc.postmortem.readers.pasted_source import EXCERPTS
from hangdoc.postmortem.readers.recording import join_segments
from hangdoc.postmortem.readers.script import SCRIPTS
from hangdoc.postmortem.script_source import with_source
from hangdoc.verdict import CONFIDENCES, Finding, Verdict

Warn = Callable[[str], None]
MAX_PASTED = 64 * 2**10  # bytes: a longer text is a program's, and nobody chose its words
MAX_WARNINGS = 20  # the rest is counted
INTERNAL_ERROR = "internal error, please report it,"
CUT = "it rests on the last line, which may be cut: the text does not end with a newline"


class _Problems(list[str]):
    """Sentences, each once: several readers meet the same damage."""

    def append(self, text: str) -> None:
        if text not in self._known:
            self._known.add(text)
            super().append(text)

    def __init__(self) -> None:
        super().__init__()
        self._known: set[str] = set()


class Unrecognised(HangdocError):
    """No source contains evidence of a job; the text lists the known formats."""


@dataclass(frozen=True, slots=True)
class IdentifiedSource:
    """A source and its format."""

    source: Source
    format: str | None  # name of the reader; None: not recognised


# Of all that can be read: what most people can still collect, and what says most.
FIRST_TO_COLLECT = (
    "py-spy dump",
    "training log",
    "Flight Recorder dump",
    "ps or top output",
    "kernel log with blocked tasks",
)
FORMATS = "docs/post-mortem.md"


@dataclass(frozen=True, slots=True)
class JobReport:
    """The verdict of one job, with the facts behind it."""

    verdict: Verdict
    facts: Facts


@dataclass(frozen=True, slots=True)
class Report:
    jobs: tuple[JobReport, ...]
    sources: tuple[IdentifiedSource, ...]
    problems: tuple[str, ...]  # one sentence for each thing that could not be read

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return tuple(job.verdict for job in self.jobs)


def report(
    paths: Sequence[Path],
    playbooks: Sequence[Path] = (),
    warn: Warn = lambda text: None,
    progress: Callable[[int], None] = lambda count: None,
    judge: Judge | Callable[[], Judge] | None = None,
    names: Mapping[Path, str] | None = None,
) -> Report:
    """The verdict of every job with evidence in `paths`. Raises Unrecognised if there is none.

    `judge`: reused for many reports, or a function that loads it; default: a new one from the shipped playbooks and
    `playbooks`.
    `names`: what messages call a path, if not by its name.
    """
    names = names or {}
    problems = _Problems()
    readers = load_readers()
    identified: list[IdentifiedSource] = []
    found = find_sources(paths, problems.append)
    found = tuple(replace(one, name=names[one.path]) if one.path in names else one for one in found)
    files = join_segments(assign_nodes(found))
    context = ReadContext(problems.append, progress, files=len(files))
    evidence = _read_evidence(files, readers, context, identified)
    first = list(islice(evidence, 1))  # a reader that works ahead is at it while the playbooks are loaded
    judge = judge() if callable(judge) else judge or load_judge(playbooks, warn)
    jobs: Sequence[JobReport] | None = _judged(chain(first, evidence), files, context, judge)
    for problem in problems[:MAX_WARNINGS]:
        warn(problem)
    if len(problems) > MAX_WARNINGS:
        warn(f"and {len(problems) - MAX_WARNINGS} more that could not be read")
    if jobs is None:
        raise Unrecognised(_unrecognised_text([names.get(path, str(path)) for path in paths], readers))
    if context.shared.get(OPEN_ENDS) and sum(source.size for source in files) <= MAX_CLEANED:
        quiet = ReadContext(lambda text: None, files=len(files), whole_lines=True)
        evidence = _read_evidence(files, readers, quiet, [])
        jobs = _doubted(jobs, lambda: _judged(evidence, files, quiet, judge) or ())
    return Report(tuple(jobs), tuple(identified), tuple(problems))


def _judged(
    evidence: Iterable[EvidenceItem], files: Sequence[Source], context: ReadContext, judge: Judge
) -> list[JobReport] | None:
    """The verdict of every job; None: no evidence of one."""
    shots = snapshots(evidence, context.warn)
    shots = with_source(
        shots, context.shared.get(SCRIPTS, ()), _evidence_time(files), context.warn, context.shared.get(EXCERPTS, ())
    )
    names = dict.fromkeys(rank.target.job for shot in shots for rank in shot.ranks)
    records = (record for shot in shots for record in shot.records.values())
    if not names and all(map(_tells_nothing, records)):
        return None
    jobs = []
    for name in names or {"none": None}:
        facts = judge.facts(_history_of(shots, name))
        facts = judge.before_deaths(facts) or facts
        jobs.append(JobReport(judge.verdict(facts), facts))
    return jobs


def _doubted(jobs: Sequence[JobReport], whole: Callable[[], Sequence[JobReport]]) -> Sequence[JobReport]:
    """The jobs, with no more confidence in a finding than there is without last lines that may be cut.

    `whole`: judges the same texts without such lines.
    """
    if all(finding.confidence == "low" for job in jobs for finding in job.verdict.findings):
        return jobs
    held = {_accusation(finding): finding.confidence for job in whole() for finding in job.verdict.findings}

    def doubted(finding: Finding) -> Finding:
        confidence = min(finding.confidence, held.get(_accusation(finding), "low"), key=CONFIDENCES.index)
        if confidence == finding.confidence:
            return finding
        return replace(finding, confidence=confidence, reasons=(*finding.reasons, CUT))

    return [
        replace(job, verdict=replace(job.verdict, findings=tuple(map(doubted, job.verdict.findings)))) for job in jobs
    ]


def _accusation(finding: Finding) -> tuple[str, frozenset[tuple[int | None, str | None]]]:
    """The playbook of a finding, and whom it names."""
    return finding.playbook, frozenset((culprit.rank, culprit.host) for culprit in finding.culprits)


def _history_of(shots: Sequence[Snapshot], job: str) -> list[Snapshot]:
    """The history of one job, with the snapshots of hosts without ranks, which may have records of their own."""
    parts = [of_job(shot, job) for shot in shots]
    return [part for part, shot in zip(parts, shots, strict=True) if part.ranks or not shot.ranks]


def _read_evidence(
    sources: Sequence[Source], readers: Sequence[Reader], context: ReadContext, identified: list[IdentifiedSource]
) -> Iterator[EvidenceItem]:
    """What the sources hold; several recordings are put in the order of their times, each in its own order.

    A history is cut where its first rank dies: hosts that recorded a job separately must not follow each other in it.
    """
    recorded: list[list[Snapshot]] = []
    exclusive = [reader for reader in readers if getattr(reader, "exclusive", False)]
    of_text = [reader for reader in readers if not getattr(reader, "exclusive", False)]
    following = context.following
    following.extend(sources)
    while following:
        source = following.popleft()
        format = None
        try:
            if reader := next((one for one in exclusive if one.recognises(source)), None):
                format = reader.name
                shots: list[Snapshot] = []
                recorded.append(shots)
                for item in _read(reader, source, context):
                    if isinstance(item, Snapshot):
                        shots.append(item)
                    else:
                        yield item
            elif is_text(source.head):
                names: list[str] = []
                yield from _read_text(source, of_text, context, names)
                format = ", ".join(names) or None
            else:
                context.warn(f"{source.name}: {'unknown format' if source.head else _why_no_head(source)}")
                context.progress(source.size)
        finally:
            identified.extend(IdentifiedSource(part, format) for part in (*source.earlier_segments, source))
            source.drop_head()
    yield from merge(*filter(None, recorded), key=lambda shot: shot.time)


def _read_text(
    source: Source, readers: Sequence[Reader], context: ReadContext, names: list[str]
) -> Iterator[EvidenceItem]:
    """Every reader's evidence in a text; `names` takes the formats that are in it."""
    text = text_source(source, context)
    whole = isinstance(text, TextSource) or len(source.head) < HEAD_BYTES
    parts: dict[str, Source] = {} if whole else marked_parts(text, _marks(readers))
    quiet = ReadContext(context.warn, shared=context.shared, files=context.files)
    placement = placement_in(text)
    for reader in readers:
        general = getattr(reader, "marks", None) is None  # any text, or any that it recognises
        part = text if whole or general else parts.get(reader.name)
        if part is None or not reader.recognises(part):
            continue
        own = replace(quiet, progress=context.progress) if general and not whole else quiet
        own.taken = frozenset(names)
        found = 0
        for item in _read(reader, part, own):
            found += not _is_empty(item)
            if not names or not _is_empty(item):
                yield placement.placed(item) if isinstance(item, Piece) else item
        if found or (reader is readers[-1] and not names):
            names.append(reader.name)
    if names:
        yield from placement.pieces
    if isinstance(text, TextSource) and context.files == 1 and len(text.content) <= MAX_PASTED:
        content = text.head_text
        yield Piece(ProcessRef(), terms.RECORD, Terms(terms.known_terms(content), rank_signs.known_signs(content)))
    if whole:
        context.progress(source.size)


def _is_empty(item: EvidenceItem) -> bool:
    """True for a log without events: that a rank wrote lines counts only in a file that is a log."""
    return isinstance(item, Piece) and isinstance(item.record, Logs) and not item.record.said


def _tells_nothing(record: object) -> bool:
    """True for words that tell of no trouble: they count only beside other evidence."""
    return isinstance(record, Terms) and terms.judge(record.words).likely is None


def _marks(readers: Sequence[Reader]) -> dict[str, tuple[str, ...]]:
    return {reader.name: marks for reader in readers if (marks := getattr(reader, "marks", None)) is not None}


def _read(reader: Reader, source: Source, context: ReadContext) -> Iterator[EvidenceItem]:
    try:
        yield from reader.read(source, context)
    except OSError as error:
        context.warn(f"{source.name}: {error.strerror or error}; read up to there")
    except (MemoryError, RecursionError):
        context.warn(f"{source.name}: it needs more memory than a file of its size should; read up to there")
    except Exception as error:  # a defect of one reader must not cost what the others found
        if os.environ.get("HANGDOC_DEBUG"):
            raise
        what = f"{type(error).__name__}: {str(error)[:200]}"
        context.warn(f"{source.name}: {INTERNAL_ERROR} in the reader of {reader.name} ({what}); read up to there")


def _evidence_time(files: Sequence[Source]) -> float | None:
    """The last modification time (Unix, s) of the files, without scripts."""
    times = []
    for source in files:
        with suppress(OSError):
            if source.path.suffix == ".py":
                continue
            times.append(source.path.stat().st_mtime)
    return max(times, default=None)


def _why_no_head(source: Source) -> str:
    try:
        with source.open() as file:
            return "empty" if not file.read(1) else "not readable"
    except (OSError, EOFError) as error:
        return getattr(error, "strerror", None) or str(error)


def _unrecognised_text(names: Sequence[str], readers: Sequence[Reader]) -> str:
    helps = {reader.name: reader.help for reader in readers}
    best = "\n".join(f"  {name}: {helps[name]}" for name in FIRST_TO_COLLECT)
    return (
        f"no evidence of a training job in {', '.join(names)}. While the job runs, `hangdoc watch --once` on one of "
        f"its hosts says most. Later, these files help most:\n{best}\n"
        f"hangdoc reads {len(readers) - len(FIRST_TO_COLLECT)} more kinds of text: see {FORMATS}"
    )
