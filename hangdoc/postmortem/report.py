"""The verdict of a job that has ended, from its files, by the same analyses and playbooks as a live watch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hangdoc.analysis.facts import Facts
from hangdoc.diagnose import Judge, load_judge
from hangdoc.errors import HangdocError
from hangdoc.evidence import Snapshot
from hangdoc.evidence.snapshot import of_job
from hangdoc.postmortem.assemble import snapshots
from hangdoc.postmortem.readers import EvidenceItem, ReadContext, Reader, Source, load_readers
from hangdoc.postmortem.readers._input_file import find_sources
from hangdoc.postmortem.readers._torchrun import assign_nodes
from hangdoc.postmortem.readers.recording import join_segments
from hangdoc.postmortem.readers.script import SCRIPTS
from hangdoc.postmortem.script_source import with_source
from hangdoc.verdict import Verdict

Warn = Callable[[str], None]
MOST_WARNINGS = 20  # the rest is counted


class Unrecognised(HangdocError):
    """No source contains evidence of a job; the text lists the known formats."""


@dataclass(frozen=True, slots=True)
class IdentifiedSource:
    """A source and its format."""

    source: Source
    format: str | None  # name of the reader; None: not recognised


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
    judge: Judge | None = None,
) -> Report:
    """The verdict of every job with evidence in `paths`. Raises Unrecognised if there is none.

    `judge`: reused for many reports; default: a new one from the shipped playbooks and `playbooks`.
    """
    problems: list[str] = []
    readers = load_readers()
    identified: list[IdentifiedSource] = []
    files = join_segments(assign_nodes(find_sources(paths, problems.append)))
    context = ReadContext(problems.append, progress)
    shots = snapshots(_read_evidence(files, readers, context, identified), problems.append)
    shots = with_source(shots, context.shared.get(SCRIPTS, ()), _evidence_time(files), problems.append)
    for problem in problems[:MOST_WARNINGS]:
        warn(problem)
    if len(problems) > MOST_WARNINGS:
        warn(f"and {len(problems) - MOST_WARNINGS} more that could not be read")
    names = dict.fromkeys(rank.target.job for shot in shots for rank in shot.ranks)
    if not names and not any(shot.records for shot in shots):
        raise Unrecognised(_unrecognised_text(paths, readers))
    judge = judge or load_judge(playbooks, warn)
    jobs = []
    for name in names or {"none": None}:
        facts = judge.facts(_history_of(shots, name))
        facts = judge.before_deaths(facts) or facts
        jobs.append(JobReport(judge.verdict(facts), facts))
    return Report(tuple(jobs), tuple(identified), tuple(problems))


def _history_of(shots: Sequence[Snapshot], job: str) -> list[Snapshot]:
    """The history of one job, with the snapshots of hosts without ranks, which may have records of their own."""
    parts = [of_job(shot, job) for shot in shots]
    return [part for part, shot in zip(parts, shots, strict=True) if part.ranks or not shot.ranks]


def _read_evidence(
    sources: Sequence[Source], readers: Sequence[Reader], context: ReadContext, identified: list[IdentifiedSource]
) -> Iterator[EvidenceItem]:
    for source in sources:
        reader = next((one for one in readers if one.recognises(source)), None) if source.head else None
        format = reader.name if reader else None
        identified.extend(IdentifiedSource(part, format) for part in (*source.earlier_segments, source))
        if reader is None:
            context.warn(f"{source.name}: {'unknown format' if source.head else _why_no_head(source)}")
            context.progress(source.size)
            continue
        try:
            yield from reader.read(source, context)
        except OSError as error:
            context.warn(f"{source.name}: {error.strerror or error}; read up to there")
        except (MemoryError, RecursionError):
            context.warn(f"{source.name}: it needs more memory than a file of its size should; read up to there")
        finally:
            source.drop_head()


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


def _unrecognised_text(paths: Sequence[Path], readers: Sequence[Reader]) -> str:
    names = ", ".join(str(path) for path in paths)
    helps = "\n".join(f"  {reader.name}: {reader.help}" for reader in readers)
    return f"no evidence of a training job in {names}. Known formats, and how to collect them next time:\n{helps}"
