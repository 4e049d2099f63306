from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from hangdoc import evidence
from hangdoc.evidence import (
    ChildProcess,
    Environ,
    Frame,
    Host,
    Process,
    RankEvidence,
    Snapshot,
    Stack,
    Stacks,
    Target,
    ThreadCpu,
    Unseen,
    Variable,
)
from hangdoc.evidence.record import Record
from hangdoc.recording import codec
from hangdoc.recording.codec import BadRecord, Registry, decode, decode_snapshot, encode

KNOWN = Registry({"cpu": Process, "stacks": Stacks, "environ": Environ}, {"host": Host})


def snapshot(ranks: int = 2, frames: int = 30) -> Snapshot:
    return Snapshot(
        host="node-a",
        at_s=12.5,
        time="2025-11-21T01:22:33Z",
        ranks=tuple(_rank(number, frames) for number in range(ranks)),
        records={"host": Host("node-a", None, "6.18", 2, None, frozenset({"avx2", "sse4"}), 2**34)},
        unseen=(Unseen("stacks", "ptrace refused", rank=3),),
        tier="look",
    )


def _rank(number: int, frames: int) -> RankEvidence:
    thread = ThreadCpu(100 + number, "python", "S", 1.5, voluntary=3, wchan="futex_wait", syscall=0)
    child = ChildProcess(7, "worker", ("python", "-c"), "R", 0.0)
    process = Process(
        100, 1, 0, "S", ("python", "job.py"), None, "/", 3.5, 0.0, 2**20, (thread,), affinity=(0, 1), children=(child,)
    )
    variables = (Variable("n", "20", number=20.0, kind="int"), Variable("x", "\x1b[31m\udcff☃", argument=True))
    stack = tuple(
        Frame(f"f{i}", f"/very/long/path/to/the/module_{i}.py", i, variables=variables) for i in range(frames)
    )
    stacks = Stacks(
        (Stack(100, "MainThread", stack, active=True, left_out=7), Stack(101, None, ())), children=((7, ()),)
    )
    records = {"cpu": process, "stacks": stacks, "environ": Environ({"RANK": str(number)})}
    return RankEvidence(Target(100 + number, 5, "node-a", number, children=(7,)), True, records)


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_a_snapshot_survives_the_round_trip() -> None:
    shot = snapshot()
    assert decode_snapshot(through_json(encode(shot)), KNOWN) == shot


def test_defaults_are_not_written() -> None:
    written = encode(snapshot())
    assert "exit" not in written["ranks"][0]
    assert written["ranks"][0]["target"] == {
        "pid": 100,
        "start_ticks": 5,
        "host": "node-a",
        "rank": 0,
        "children": (7,),
    }
    assert written["ranks"][0]["records"]["cpu"]["threads"][0]["syscall"] == 0  # zero is seen, None is not


def test_records_of_unknown_probes_stay_as_they_are() -> None:
    shot = replace(snapshot(), records={"later": {"a": [1, None]}})
    assert decode_snapshot(through_json(encode(shot)), KNOWN).records == {"later": {"a": [1, None]}}


class Older(Record, frozen=True):
    name: str
    ratio: float | None


class Newer(Record, frozen=True):
    name: str
    ratio: float | None
    count: int = 3
    pairs: tuple[tuple[int, tuple[str, ...]], ...] = ()
    by_number: Mapping[int, float] = {}
    either: int | str | None = None


def test_older_and_newer_versions_read_each_other() -> None:
    assert decode(Newer, encode(Older("a", None))) == Newer("a", None)
    newer = Newer("a", 0.5, 0, ((1, ("x",)),), {4: 1.0}, "text")
    assert decode(Newer, through_json(encode(newer))) == newer
    assert decode(Older, through_json(encode(newer))) == Older("a", 0.5)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (None, "Expected `object`, got `null`"),
        ([], "Expected `object`, got `array`"),
        ({}, "Object missing required field `name`"),
        ({"name": 3}, "Expected `str`, got `int` - at `$.name`"),
        ({"name": None}, "Expected `str`, got `null` - at `$.name`"),
        ({"name": "a", "ratio": "x"}, "Expected `float | null`, got `str` - at `$.ratio`"),
        ({"name": "a", "ratio": True}, "Expected `float | null`, got `bool` - at `$.ratio`"),
        ({"name": "a", "count": True}, "Expected `int`, got `bool` - at `$.count`"),
        ({"name": "a", "count": 1.5}, "Expected `int`, got `float` - at `$.count`"),
        ({"name": "a", "count": 1.0}, "Expected `int`, got `float` - at `$.count`"),
        ({"name": "a", "pairs": {}}, "Expected `array`, got `object` - at `$.pairs`"),
        ({"name": "a", "pairs": [[1]]}, "Expected `array` of length 2, got 1 - at `$.pairs[0]`"),
        ({"name": "a", "by_number": {"x": 1}}, "Expected `int`, got `str` - at `key` in `$.by_number`"),
        ({"name": "a", "either": [[]]}, "Expected `int | str | null`, got `array` - at `$.either`"),
        ({"name": "a", "\udcff": 1}, "'utf-8' codec can't encode"),
    ],
)
def test_wrong_input_is_named(value: Any, complaint: str) -> None:
    with pytest.raises(BadRecord) as caught:
        decode(Newer, value)
    assert str(caught.value).startswith(f"Newer: {complaint}")


def test_a_float_takes_an_integer() -> None:
    assert decode(Newer, {"name": "a", "ratio": 2}) == Newer("a", 2.0)


def test_an_integer_beyond_every_float_is_a_bad_record() -> None:
    with pytest.raises(BadRecord):
        decode(Newer, {"name": "a", "ratio": 10**400})


class Holder(Record, frozen=True):
    inner: tuple[tuple[int, tuple[Older, ...]], ...]
    by_name: Mapping[str, Older] = {}
    last: Older | None = None


def test_a_null_that_hangdoc_0_1_left_out_is_read() -> None:
    older = {"name": "a"}  # without `ratio`, which has no default
    holder = Holder(((1, (Older("a", None),)),), {"x": Older("a", None)}, Older("a", None))
    assert decode(Holder, {"inner": [[1, [older]]], "by_name": {"x": older}, "last": older}) == holder
    assert through_json(encode(holder))["last"] == {"name": "a", "ratio": None}
    with pytest.raises(BadRecord, match=r"missing required field `name` - at `\$.last`"):
        decode(Holder, {"inner": [], "last": {"ratio": 1.0}})


@pytest.mark.parametrize("depth", [100, 100_000])
def test_a_nesting_bomb_is_a_bad_record(depth: int) -> None:
    bomb: Any = []
    for _ in range(depth):
        bomb = [bomb]
    for kind in (Newer, Holder):
        with pytest.raises(BadRecord):
            decode(kind, {"name": bomb, "inner": bomb})


def test_any_damage_to_a_snapshot_is_a_bad_record_or_harmless() -> None:
    """Every single value of a snapshot replaced by every kind of wrong value."""
    whole = through_json(encode(snapshot(1, 2)))
    refused = 0
    for path in _paths(whole):
        wrong: Any
        for wrong in (None, True, -1, 1e400, "x", [], {}, [[[]]], {"$": "os.system"}):
            try:
                decode_snapshot(_replaced(whole, path, wrong), KNOWN)
            except BadRecord:
                refused += 1
    assert refused > 500


def _paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, item in inner for path in _paths(item, (*at, key)))]


def _replaced(value: Any, path: tuple[Any, ...], wrong: Any) -> Any:
    if not path:
        return wrong
    copy = value.copy()
    copy[path[0]] = _replaced(value[path[0]], path[1:], wrong)
    return copy


def test_every_record_of_every_probe_can_be_read() -> None:
    """A record whose hints the codec cannot read would only be noticed in a post-mortem."""
    known = codec.registry()
    own = [kind for kind in vars(evidence).values() if isinstance(kind, type) and issubclass(kind, Record)]
    for kind in (*known.rank.values(), *known.host.values(), *own):
        assert issubclass(kind, Record)
        try:
            decode(kind, dict.fromkeys(kind.__struct_fields__, _Odd()))
        except BadRecord:
            continue


class _Odd:
    """No JSON value at all."""


def test_eight_ranks_with_stacks_are_written_in_5_ms() -> None:
    shot = snapshot(ranks=8)
    times = []
    for _ in range(7):
        start = time.perf_counter()
        encode(shot)
        times.append(time.perf_counter() - start)
    print(f"\nencode {min(times) * 1e3:.1f} ms, {len(json.dumps(encode(shot)))} bytes")
    assert min(times) < 0.02  # measured 1 ms; the bound is only against a blunder
