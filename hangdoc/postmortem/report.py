"""Post-mortem: what is left of a job, through the same analysis and playbooks as the live watch."""

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
from hangdoc.postmortem.readers import EvidenceItem, ReadContext, Reader, Source, load
from hangdoc.postmortem.readers._input_file import find_sources
from hangdoc.postmortem.readers._torchrun import assign_nodes
from hangdoc.postmortem.readers.recording import with_segments
from hangdoc.postmortem.readers.script import SCRIPTS
from hangdoc.postmortem.script_source import with_source
from hangdoc.verdict import Verdict

Say = Callable[[str], None]
PROBLEMS = 20  # said one by one; the rest is counted


class Unrecognised(HangdocError):
    """Nothing in the sources is of a kind that says anything; the text says what would."""


@dataclass(frozen=True, slots=True)
class Read:
    """A source, and what it was taken for."""

    source: Source
    kind: str | None  # name of the reader; None: not recognised


@dataclass(frozen=True, slots=True)
class Account:
    """One job's verdict, and what it rests on."""

    verdict: Verdict
    facts: Facts


@dataclass(frozen=True, slots=True)
class Report:
    accounts: tuple[Account, ...]
    read: tuple[Read, ...]
    problems: tuple[str, ...]  # a sentence for each thing that could not be read

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return tuple(account.verdict for account in self.accounts)


def report(
    sources: Sequence[Path],
    playbooks: Sequence[Path] = (),
    say: Say = lambda text: None,
    progress: Callable[[int], None] = lambda count: None,
    judge: Judge | None = None,
) -> Report:
    """The verdict of every job of which something is left; raises Unrecognised where nothing is.

    `judge`: one for many reports, else it is made of the shipped playbooks and `playbooks`.
    """
    problems: list[str] = []
    readers = load()
    read: list[Read] = []
    files = with_segments(assign_nodes(find_sources(sources, problems.append)))
    context = ReadContext(problems.append, progress)
    shots = snapshots(_found(files, readers, context, read), problems.append)
    shots = with_source(shots, context.shared.get(SCRIPTS, ()), _written(files), problems.append)
    for problem in problems[:PROBLEMS]:
        say(problem)
    if len(problems) > PROBLEMS:
        say(f"and {len(problems) - PROBLEMS} more that could not be read")
    jobs = dict.fromkeys(rank.target.job for shot in shots for rank in shot.ranks)
    if not jobs and not any(shot.records for shot in shots):
        raise Unrecognised(_nothing(sources, readers))
    judge = judge or load_judge(playbooks, say)
    accounts = []
    for job in jobs or {"none": None}:
        facts = judge.facts(_of(shots, job))
        accounts.append(Account(judge.verdict(facts), facts))
    return Report(tuple(accounts), tuple(read), tuple(problems))


def _of(shots: Sequence[Snapshot], job: str) -> list[Snapshot]:
    """The history of one job; a host without a rank of it may still have something to say."""
    mine = [of_job(shot, job) for shot in shots]
    return [part for part, shot in zip(mine, shots, strict=True) if part.ranks or not shot.ranks]


def _found(
    sources: Sequence[Source], readers: Sequence[Reader], context: ReadContext, read: list[Read]
) -> Iterator[EvidenceItem]:
    for source in sources:
        reader = next((one for one in readers if one.recognises(source)), None) if source.head else None
        read.extend(Read(part, reader.name if reader else None) for part in (*source.earlier_segments, source))
        if reader is None:
            context.warn(f"{source.name}: {'not of a kind that hangdoc reads' if source.head else _empty(source)}")
            context.progress(source.size)
            continue
        try:
            yield from reader.read(source, context)
        except OSError as error:
            context.warn(f"{source.name}: {error.strerror or error}; read up to there")
        except (MemoryError, RecursionError):
            context.warn(f"{source.name}: it takes more memory than a file of its size can need; read up to there")
        finally:
            source.drop_head()


def _written(files: Sequence[Source]) -> float | None:
    """When the newest of them, scripts aside, was written (Unix time)."""
    times = []
    for source in files:
        with suppress(OSError):
            if source.path.suffix == ".py":
                continue
            times.append(source.path.stat().st_mtime)
    return max(times, default=None)


def _empty(source: Source) -> str:
    try:
        with source.open() as file:
            return "empty" if not file.read(1) else "not readable"
    except (OSError, EOFError) as error:
        return getattr(error, "strerror", None) or str(error)


def _nothing(sources: Sequence[Path], readers: Sequence[Reader]) -> str:
    names = ", ".join(str(source) for source in sources)
    helps = "\n".join(f"  {reader.name}: {reader.help}" for reader in readers)
    return f"nothing in {names} tells of a training job. What would, and how to keep it next time:\n{helps}"
