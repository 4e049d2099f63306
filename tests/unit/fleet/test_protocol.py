"""What an agent writes and its collector reads: every recorded snapshot crosses whole, and nothing grows with time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hangdoc.evidence import Frame, RankEvidence, Snapshot, Stack, Stacks, Target, Variable
from hangdoc.fleet import protocol
from hangdoc.fleet.decoder import Decoder
from hangdoc.fleet.encoder import PLAIN_KINDS, TENSOR_FORWARDERS, AddressNumbers, Encoder, without_addresses
from hangdoc.recording import codec, recorder
from tests.support.paths import PLAYBOOKS

AT = re.compile(r"(?<= at 0x)[0-9a-f]+")
CAPTURES = sorted(PLAYBOOKS.glob("*/capture.jsonl.zst"))


def kinds() -> dict[str, type]:
    registry = codec.registry()
    return {**registry.rank, **registry.host}


def snapshots(capture: Path) -> tuple[Snapshot, ...]:
    (found,) = recorder.read(capture)
    return found.snapshots


def crossed(writer: Encoder, reader: Decoder, shot: Snapshot) -> tuple[Snapshot, int]:
    """What the collector makes of it, and how many bytes it took."""
    line = protocol.line(writer.answer(1, shot, {}))
    return reader.snapshot(shot.host, protocol.parse(line, protocol.Answer)), len(line)


@dataclass
class Named:
    """Renames objects in the order in which they are met: the same for two that call them by other names."""

    names: dict[tuple[Target, int], int] = field(default_factory=dict)

    def __call__(self, shot: Snapshot) -> Snapshot:
        return replace(shot, ranks=tuple(map(self.rank, shot.ranks)))

    def rank(self, rank: RankEvidence) -> RankEvidence:
        def name(address: int) -> int:
            return self.names.setdefault((rank.target, address), len(self.names))

        def variable(v: Variable) -> Variable:
            text = v.text if v.kind in PLAIN_KINDS else AT.sub(lambda found: str(name(int(found[0], 16))), v.text)
            return replace(v, text=text, address=None if v.address is None else name(v.address))

        def frame(f: Frame) -> Frame:
            return replace(f, variables=None if f.variables is None else tuple(map(variable, f.variables)))

        def stack(s: Stack) -> Stack:
            return replace(s, frames=tuple(map(frame, s.frames)))

        records = dict(rank.records)
        if (stacks := records.get("stacks")) is not None:
            records["stacks"] = replace(
                stacks,
                threads=tuple(map(stack, stacks.threads)),
                globals=None if stacks.globals is None else tuple(map(variable, stacks.globals)),
                children=tuple((pid, tuple(map(stack, some))) for pid, some in stacks.children),
            )
        if (groups := records.get("groups")) is not None:
            told = tuple(replace(group, address=name(group.address)) for group in groups.groups)
            records["groups"] = replace(groups, groups=told)
        if (parameters := records.get("parameters")) is not None and parameters.group is not None:
            records["parameters"] = replace(parameters, group=name(parameters.group))
        return replace(rank, records=records)


def expected(shot: Snapshot) -> Snapshot:
    """The snapshot without what says nothing beyond its host."""

    def plain(stack: Stack) -> Stack:
        return replace(stack, frames=tuple(map(stripped, stack.frames)))

    def stripped(frame: Frame) -> Frame:
        carries = any(part in frame.file for part in TENSOR_FORWARDERS)
        kept = [v for v in frame.variables or () if not carries or v.tensor]
        return replace(frame, variables=None if frame.variables is None else told(kept))

    def told(variables: Iterable[Variable]) -> tuple[Variable, ...]:
        return tuple(replace(v, address=None) if v.kind in PLAIN_KINDS else v for v in variables)

    def rank(seen: RankEvidence) -> RankEvidence:
        stacks = seen.records.get("stacks")
        if stacks is None:
            return seen
        children = tuple((pid, tuple(map(plain, threads))) for pid, threads in stacks.children)
        module = None if stacks.globals is None else told(stacks.globals)
        bare = replace(stacks, threads=tuple(map(plain, stacks.threads)), globals=module, children=children)
        return replace(seen, records={**seen.records, "stacks": bare})

    return replace(shot, ranks=tuple(map(rank, shot.ranks)))


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.parent.name)
def test_a_snapshot_crosses_whole(capture: Path) -> None:
    writer, reader = Encoder(), Decoder(kinds())
    here, there = Named(), Named()
    for shot in snapshots(capture):
        assert there(crossed(writer, reader, shot)[0]) == here(expected(shot))


def test_a_deep_stack_says_how_much_of_it_was_left_out() -> None:
    stack = Stack(100, "MainThread", (Frame("f", "t.py", 3, "t.py"),), left_out=99_750)
    rank = RankEvidence(Target(100, 1, "n1", None), True, {"stacks": Stacks((stack,))})
    seen, _ = crossed(Encoder(), Decoder(kinds()), Snapshot("n1", 1.0, "", (rank,)))
    assert seen.ranks[0].records["stacks"].threads == (stack,)


def test_ranks_that_differ_only_in_object_addresses_share_frames() -> None:
    def rank(pid: int, at: int) -> RankEvidence:
        held = Variable("model", f"<Net at {at:#x}>", kind="object", address=at)
        frames = (Frame("train", "t.py", 3, "t.py", False, (held, Variable("step", "7", number=7.0, kind="int"))),)
        return RankEvidence(Target(pid, 1, "n1", None), True, {"stacks": Stacks((Stack(pid, "MainThread", frames),))})

    shot = Snapshot("n1", 1.0, "", (rank(100, 0x7F0000001000), rank(200, 0x7F1111112000)))
    seen, _ = crossed(Encoder(), Decoder(kinds()), shot)
    one, other = (rank.records["stacks"].threads[0].frames[0] for rank in seen.ranks)
    assert one is other
    assert [(v.text, v.address) for v in one.variables or ()] == [("<Net at 0x1>", 1), ("7", None)]


@pytest.mark.parametrize(
    ("kind", "text"), [("str", "' at 0x7f0000001000'"), ("object", "0x7f0000001000"), ("object", "<Port at 0x3f8>")]
)
def test_text_without_an_address_is_unchanged(kind: str, text: str) -> None:
    assert without_addresses(Variable("a", text, kind=kind), AddressNumbers(), 1).text == text


def test_unchanged_parts_are_sent_once() -> None:
    shot = snapshots(CAPTURES[0])[-1]
    writer, reader = Encoder(), Decoder(kinds())
    first, again = (crossed(writer, reader, shot)[1] for _ in range(2))
    assert again < first / 8


def test_equal_stacks_are_sent_once() -> None:
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
    writer, reader = Encoder(), Decoder(kinds())
    line = protocol.line(writer.answer(1, many, {}))
    assert reader.snapshot(shot.host, protocol.parse(line, protocol.Answer)) == expected(many)
    outermost = bare.threads[0].frames[-1]
    assert line.count(f'"function":"{outermost.function}","file":"{outermost.file}"'.encode()) == 1


def test_neither_side_grows_with_time() -> None:
    """Ever new ranks, over ever new answers; an unchanged record stays known however old it gets."""
    shot = snapshots(CAPTURES[0])[-1]
    steady, other = shot.ranks[0], shot.ranks[-1]
    writer, reader = Encoder(), Decoder(kinds())
    held = set()
    here, there = Named(), Named()
    for number in range(4 * protocol.KEEP):
        passing = replace(other, target=replace(other.target, start_ticks=number))
        now = replace(shot, ranks=(steady, passing))
        assert there(crossed(writer, reader, now)[0]) == here(expected(now))
        if number > protocol.KEEP:
            named = sum(map(len, writer._objects.values()))
            held.add((len(writer._numbers), len(reader._parts), named))
    assert len(held) == 1


def test_a_part_that_was_never_sent_is_an_error() -> None:
    shot = snapshots(CAPTURES[0])[-1]
    answer = Encoder().answer(1, shot, {})
    with pytest.raises(ValueError, match="never sent"):
        Decoder(kinds()).snapshot("n1", replace(answer, parts={}))


def test_a_part_of_another_type_is_an_error() -> None:
    answer = Encoder().answer(1, snapshots(CAPTURES[0])[0], {})
    entry = answer.ranks[0]
    lying = replace(entry, records={**entry.records, "stacks": entry.target})
    with pytest.raises(ValueError, match=r"part \d+ is a Target, not a Stacks"):
        Decoder(kinds()).snapshot("n1", replace(answer, ranks=(lying,)))


def test_a_record_of_an_unknown_probe_is_skipped() -> None:
    shot = snapshots(CAPTURES[0])[-1]
    answer = Encoder().answer(1, shot, {})
    known = {name: kind for name, kind in kinds().items() if name != "cpu"}
    seen = Decoder(known).snapshot(shot.host, answer)
    assert [set(rank.records) for rank in seen.ranks] == [set(rank.records) - {"cpu"} for rank in shot.ranks]


@given(st.binary(max_size=200) | st.sampled_from([b"[" * 100_000, b'{"to":1}', b'{"to":1,"ranks":[{}]}', b"null"]))
def test_an_invalid_answer_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        protocol.parse(text, protocol.Answer)


def test_each_agent_takes_its_own_arguments_from_a_shared_command() -> None:
    mine, all_of_it = protocol.HostArguments(skip=(7,)), protocol.HostArguments(still=(1,))
    several = protocol.parse(protocol.line(protocol.Command("look", 1, {"a": mine})), protocol.Command)
    assert (several.of("a"), several.of("b")) == (mine, protocol.HostArguments())
    assert protocol.Command("look", 1, {"": all_of_it}).of("b") == all_of_it
