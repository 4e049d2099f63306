"""Recordings of `hangdoc watch --record`: snapshots as they were taken.

Of a long recording, only the end and the looks before standing verdicts are judged (see `_recording_windows`). Segments
of one recording are read together, without those that do not matter.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from msgspec import structs

from hangdoc.evidence import Snapshot
from hangdoc.evidence.memory import gc_paused, share
from hangdoc.postmortem.readers import EvidenceItem, ReadContext, Source
from hangdoc.postmortem.readers._recording_windows import ROUNDS, KeptLine, Windows
from hangdoc.recording import codec
from hangdoc.recording.recorder import MAX_PROBLEMS, SCHEMA, SUFFIX, Header, header, is_header, lines
from hangdoc.system import input_limits

MAX_RANKS, BYTES_A_RANK = 4096, 16  # ranks in one look; more need 16 bytes of file size each
MAX_LINES, BYTES_A_LINE = 1000, 4  # the same for lines


class RecordingReader:
    name = "recording"
    order = 0
    exclusive = True
    help = "`hangdoc watch --record DIR` beside the job records incidents"

    def recognises(self, source: Source) -> bool:
        return b'"hangdoc.recording/' in source.head[:4096]

    def read(self, source: Source, context: ReadContext) -> Iterable[EvidenceItem]:
        parts = (*source.earlier_segments, source)
        size = sum(part.size for part in parts)
        windows, found = Windows(input_limits.most_whole(size)), list[Snapshot]()
        cuts, problems = list[str](), list[str]()  # reasons for early ends; skipped lines
        try:
            with input_limits.limited_memory(input_limits.most_memory(size, windows.most_text)):
                for part in parts:
                    _add_lines(part, windows, cuts, problems)
                kept = list(windows.kept())
            with (
                gc_paused(),
                input_limits.limited_memory(input_limits.most_memory(size, sum(len(one.text) for one in kept))),
            ):
                for shot in _decoded(kept, size, problems):
                    found.append(shot)
        except MemoryError:
            cuts.append(f"{source.name}: needs more memory than a recording of its size should; read up to there")
        if source.skipped_segments or len(found) < windows.seen:
            context.warn(_coverage(source, windows, len(found)))
        for problem in (*cuts, *problems[:MAX_PROBLEMS]):
            context.warn(problem)
        if len(problems) > MAX_PROBLEMS:
            context.warn(f"{source.name}: more lines could not be read")
        context.progress(size)
        return found


def _add_lines(source: Source, windows: Windows, cuts: list[str], problems: list[str]) -> None:
    """Add the lines of one file."""
    own_cuts: list[str] = []
    texts = lines(source.path, own_cuts)
    try:
        if not is_header(next(texts, b"")):
            raise ValueError(f"not a recording of hangdoc: its first line does not name {SCHEMA}")
        most = MAX_LINES + source.size // BYTES_A_LINE
        for number, text in enumerate(texts, 2):
            if number > most:
                own_cuts.append("has more lines than a recording of its size can hold; read up to there")
                break
            try:
                windows.add(text, str(source.path), number)
            except (ValueError, RecursionError) as error:
                _report_skipped_line(problems, f"{source.path}:{number}", error)
    except FileNotFoundError:
        own_cuts.append("its recorder has removed it to make room")
    except (ValueError, OSError) as error:
        own_cuts.append(str(error))
    cuts.extend(f"{source.path}: {cut}" for cut in own_cuts)


def _decoded(kept: Sequence[KeptLine], size: int, problems: list[str]) -> Iterator[Snapshot]:
    """The looks; consecutive looks share unchanged records. `size`: bytes of the recording on disk."""
    known = codec.registry()
    before: dict[tuple[str, int], Mapping[str, Any]] = {}
    for one in kept:
        try:
            value = json.loads(one.text)["snapshot"]
            ranks = value.get("ranks") if isinstance(value, dict) else None
            if isinstance(ranks, list) and len(ranks) > max(MAX_RANKS, size // BYTES_A_RANK):
                raise ValueError(f"{len(ranks)} ranks are more than a recording of its size can hold")
            shot = codec.decode_snapshot(value, known)
        except (ValueError, RecursionError) as error:
            _report_skipped_line(problems, one.place, error)
            continue
        if one.jobs is not None:
            shot = structs.replace(shot, ranks=tuple(rank for rank in shot.ranks if rank.target.job in one.jobs))
        yield _with_shared_records(shot, before)


def _with_shared_records(shot: Snapshot, before: dict[tuple[str, int], Mapping[str, Any]]) -> Snapshot:
    """The look, with records that equal those of the rank's last look replaced by them, as in a live watch."""
    for rank in shot.ranks:
        key = rank.target.host, rank.target.pid
        last = before.get(key, {})
        records = {name: share(record, last.get(name)) for name, record in rank.records.items()}
        cast("dict[str, Any]", rank.records).update(records)
        before[key] = {**last, **records}
    return shot


def _report_skipped_line(problems: list[str], place: str, error: Exception) -> None:
    if len(problems) <= MAX_PROBLEMS:
        problems.append(f"{place}: line skipped: {str(error)[:200]}")


def _coverage(source: Source, windows: Windows, judged: int) -> str:
    """A sentence on the judged part of a recording, and its earlier verdicts."""
    span = f" from {windows.first} to {windows.last}" if windows.first else ""
    rest = f"; {source.skipped_segments} segments were not read" if source.skipped_segments else ""
    verdict_texts = "; ".join(
        f"{one.status}{f' ({one.playbook})' if one.playbook else ''} at {one.time}, job {one.job}, in {one.file}"
        for one in windows.verdicts
    )
    verdicts = f"; earlier verdicts: {verdict_texts}" if verdict_texts else ""
    return (
        f"{source.name}: {judged} of {windows.seen} looks{span} are judged: the last ones, and those before the last "
        f"verdict of each job that has not recovered{rest}{verdicts}"
    )


def join_segments(sources: Sequence[Source]) -> tuple[Source, ...]:
    """Join the segments of each recording into one source, without segments that do not matter."""
    chains: dict[tuple[str, str], list[tuple[Header, Source]]] = defaultdict(list)
    headers: dict[Source, Header] = {}
    for source in sources:
        if source.path.name.endswith(SUFFIX):
            with suppress(OSError):
                if (found := header(source.path)) is not None:
                    headers[source] = found
                    chains[found.host, found.run].append((found, source))
    newest: dict[Source, Source] = {}
    for chain in chains.values():
        chain.sort(key=lambda one: one[0].segment)
        last, source = chain[-1]
        read = [part for head, part in chain if head.segment in last.matters or last.looks - head.looks <= ROUNDS]
        newest[source] = replace(source, earlier_segments=tuple(read[:-1]), skipped_segments=len(chain) - len(read))
    return tuple(newest.get(source, source) for source in sources if source not in headers or source in newest)


READER = RecordingReader()
