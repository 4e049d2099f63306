"""Untrusted pickles."""

from __future__ import annotations

import builtins
import os
import pickle
import resource
import struct
import subprocess
import sys
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hangdoc.postmortem.readers._safe_pickle import PickleRefused, load_plain
from tests.support.pace import slowness

MARKER = "/tmp/hangdoc-pickle-ran"


class Runs:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


HOSTILE = {
    "os.system": pickle.dumps(Runs(os.system, f"touch {MARKER}")),
    "protocol 0": f"cos\nsystem\n(S'touch {MARKER}'\ntR.".encode(),
    "eval": pickle.dumps(Runs(builtins.eval, f"open({MARKER!r}, 'w')")),
    "subprocess": pickle.dumps(Runs(subprocess.check_call, ["touch", MARKER]), protocol=4),
    "a harmless class": pickle.dumps(OrderedDict(a=1)),
    "a class deep inside": pickle.dumps({"version": "2.10", "entries": [{"frames": [Path("/etc")]}]}),
    "inst": b"(S'x'\nios\nsystem\n.",
    "obj": b"(cos\nsystem\nS'x'\no.",
    "extension": b"\x80\x02\x82\x01.",
    "persistent": b"\x80\x02K\x01Q.",
    "build": b"\x80\x02}(K\x01K\x02u}b.",
    "reduce a list": b"\x80\x02](K\x01tR.",
    "newobj of text": b"\x80\x02X\x01\x00\x00\x00x)\x81.",
    "buffer": b"\x80\x05\x97.",
    "unhashable key": b"\x80\x02}(]K\x01u.",
    "no stop": b"\x80\x02}",
    "empty": b"",
    "pops too much": b"\x80\x020000.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_code_is_refused_and_not_run(name: str) -> None:
    with pytest.raises(PickleRefused) as refused:
        load_plain(HOSTILE[name])
    assert not os.path.exists(MARKER)
    sentence = str(refused.value)
    assert 5 < len(sentence) < 250
    assert sentence.isprintable()


def test_message_names_the_class() -> None:
    with pytest.raises(PickleRefused, match=r"it names posix\.system"):
        load_plain(HOSTILE["os.system"])
    with pytest.raises(PickleRefused, match=r"it names \?\[31mevil\.x"):
        load_plain(b"c\x1b[31mevil\nx\n.")


BOMBS = {
    "memo number": b"\x80\x02]r\xff\xff\xff\x7f.",
    "terabyte of text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x.",
    "gigabytes of bytes": b"\x80\x04\x8e" + struct.pack("<Q", 6 << 30) + b"x.",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"}.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_refused_quickly_without_memory(name: str) -> None:
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(PickleRefused):
        load_plain(BOMBS[name])
    assert time.monotonic() - began < 5 * slowness()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


@pytest.mark.parametrize("depth", [1_000, 300_000, 2_000_000])
def test_nested_tuple_keys_do_not_overflow_the_stack(depth: int) -> None:
    """CPython hashes them by recursion in C, without a limit."""
    try:
        load_plain(b"\x80\x02}()" + b"\x85" * depth + b"K\x01u.")
    except PickleRefused:
        assert depth > 1_000


def test_self_referencing_value() -> None:
    itself: list[Any] = []
    itself.append(itself)
    assert len(load_plain(pickle.dumps(itself))) == 1
    folded: Any = "lol"
    for _ in range(60):
        folded = [folded, folded]
    assert len(load_plain(pickle.dumps(folded))) == 2


def sentence(data: bytes) -> str:
    """Why it is refused; "" where it is not."""
    try:
        load_plain(data)
    except PickleRefused as refused:
        return str(refused)
    return ""


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(value=PLAIN, protocol=st.integers(0, 5))
def test_plain_values_are_read_in_every_protocol(value: Any, protocol: int) -> None:
    assert load_plain(pickle.dumps(value, protocol=protocol)) == value


@settings(max_examples=400, deadline=None)
@given(data=st.binary(max_size=200), head=st.sampled_from([b"", b"\x80\x02", b"\x80\x04", b"\x80\x02}("]))
def test_random_bytes_are_a_value_or_refused(data: bytes, head: bytes) -> None:
    assert sentence(head + data).isprintable()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_pickle_is_a_value_or_refused(data: st.DataObject) -> None:
    whole = bytearray(pickle.dumps({"entries": [{"a": [1, 2], "b": ("x", "y")}] * 3, "version": "2.10"}, protocol=2))
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    assert sentence(bytes(whole)).isprintable()


@pytest.mark.parametrize("many", [1, 10_000])
@pytest.mark.slow("uses up the CPU time that a pickle is allowed")
def test_key_that_hashes_for_years_is_refused(many: int) -> None:
    """Each level stands in the next one twice; CPython before 3.14 hashes every one of the 2**60 leaves."""
    padding = b"K\x010" * many
    began = time.process_time()
    why = sentence(b"\x80\x02}()" + b"2\x86" * 60 + padding + b"K\x01u.")
    assert "takes longer to load" in why or sys.version_info >= (3, 14)
    assert time.process_time() - began < 1  # of ours
    assert load_plain(pickle.dumps({"entries": []})) == {"entries": []}  # the next one is loaded as ever
