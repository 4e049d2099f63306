"""What an agent writes and its collector reads: every recorded snapshot crosses whole, and nothing grows with time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangdoc import codec, recording, wire
from hangdoc.evidence import Frame, RankEvidence, Snapshot, Stack
from hangdoc.wire.reader import Reader
from hangdoc.wire.writer import CARRIERS, PLAIN, Writer

CAPTURES = sorted(Path(__file__).parents[2].glob("playbooks/*/capture.jsonl.zst"))


def kinds() -> dict[str, type]:
    registry = codec.registry()
    return {**registry.rank, **registry.host}


def snapshots(capture: Path) -> tuple[Snapshot, ...]:
    (found,) = recording.read(capture)
    return found.snapshots


def crossed(writer: Writer, reader: Reader, shot: Snapshot) -> tuple[Snapshot, int]:
    """What the collector makes of it, and how many bytes it took."""
    line = wire.line(writer.answer(1, shot, {}))
    return reader.snapshot(shot.host, wire.parse(line, wire.Answer)), len(line)


def expected(shot: Snapshot) -> Snapshot:
    """The snapshot without what says nothing beyond its host."""

    def plain(stack: Stack) -> Stack:
        return replace(stack, frames=tuple(map(bare, stack.frames)))

    def bare(frame: Frame) -> Frame:
        carries = any(part in frame.file for part in CARRIERS)
        kept = [v for v in frame.variables or () if not carries or v.tensor]
        told = tuple(replace(v, address=None) if v.kind in PLAIN else v for v in kept)
        return replace(frame, variables=None if frame.variables is None else told)

    def rank(seen: RankEvidence) -> RankEvidence:
        stacks = seen.records.get("stacks")
        if stacks is None:
            return seen
        children = tuple((pid, tuple(map(plain, threads))) for pid, threads in stacks.children)
        told = replace(stacks, threads=tuple(map(plain, stacks.threads)), children=children)
        return replace(seen, records={**seen.records, "stacks": told})

    return replace(shot, ranks=tuple(map(rank, shot.ranks)))


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.parent.name)
def test_a_snapshot_crosses_whole(capture: Path) -> None:
    writer, reader = Writer(), Reader(kinds())
    for shot in snapshots(capture):
        assert crossed(writer, reader, shot)[0] == expected(shot)


def test_what_did_not_change_is_not_repeated() -> None:
    shot = snapshots(CAPTURES[0])[-1]
    writer, reader = Writer(), Reader(kinds())
    first, again = (crossed(writer, reader, shot)[1] for _ in range(2))
    assert again < first / 8


def test_equal_stacks_cross_once() -> None:
    shot = snapshots(CAPTURES[0])[-1]
    rank = shot.ranks[0]
    stacks = rank.records["stacks"]
    bare = replace(
        stacks,
        threads=tuple(replace(t, frames=tuple(replace(f, variables=None) for f in t.frames)) for t in stacks.threads),
        globals=None,
    )
    alike = [
        replace(
            rank,
            target=replace(rank.target, pid=100 + number),
            records={"stacks": replace(bare, threads=tuple(replace(t, tid=100 + number) for t in bare.threads))},
        )
        for number in range(8)
    ]
    many = replace(shot, ranks=tuple(alike), records={}, unseen=())
    writer, reader = Writer(), Reader(kinds())
    line = wire.line(writer.answer(1, many, {}))
    assert reader.snapshot(shot.host, wire.parse(line, wire.Answer)) == expected(many)
    outermost = bare.threads[0].frames[-1]
    assert line.count(f'"function":"{outermost.function}","file":"{outermost.file}"'.encode()) == 1


def test_neither_side_grows_with_time() -> None:
    """Ever new ranks, over ever new answers; an unchanged record stays known however old it gets."""
    shot = snapshots(CAPTURES[0])[-1]
    steady, other = shot.ranks[0], shot.ranks[-1]
    writer, reader = Writer(), Reader(kinds())
    held = set()
    for number in range(4 * wire.KEEP):
        passing = replace(other, target=replace(other.target, start_ticks=number))
        now = replace(shot, ranks=(steady, passing))
        assert crossed(writer, reader, now)[0] == expected(now)
        if number > wire.KEEP:
            held.add((len(writer._numbers), len(reader._parts)))
    assert len(held) == 1


def test_a_part_that_was_never_sent_is_an_error() -> None:
    shot = snapshots(CAPTURES[0])[-1]
    answer = Writer().answer(1, shot, {})
    with pytest.raises(ValueError, match="never sent"):
        Reader(kinds()).snapshot("n1", replace(answer, parts={}))


def test_a_record_of_a_probe_that_is_not_known_here_is_passed_over() -> None:
    shot = snapshots(CAPTURES[0])[-1]
    answer = Writer().answer(1, shot, {})
    known = {name: kind for name, kind in kinds().items() if name != "cpu"}
    seen = Reader(known).snapshot(shot.host, answer)
    assert [set(rank.records) for rank in seen.ranks] == [set(rank.records) - {"cpu"} for rank in shot.ranks]


@given(st.binary(max_size=200) | st.sampled_from([b"[" * 100_000, b'{"to":1}', b'{"to":1,"ranks":[{}]}', b"null"]))
def test_what_is_no_answer_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        wire.parse(text, wire.Answer)


def test_of_a_command_that_several_hear_each_takes_its_own() -> None:
    mine, all_of_it = wire.Own(skip=(7,)), wire.Own(still=(1,))
    several = wire.parse(wire.line(wire.Command("look", 1, {"a": mine})), wire.Command)
    assert (several.of("a"), several.of("b")) == (mine, wire.Own())
    assert wire.Command("look", 1, {"": all_of_it}).of("b") == all_of_it
