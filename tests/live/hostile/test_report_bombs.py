"""Small files that unpack or parse into much: none of at most 100 KB may take `hangdoc report` 10 s or 300 MB.

The seconds are CPU time of a quiet machine.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
import zstandard

from tests.support.pace import paced
from tests.support.paths import ROOT

LIMIT_S, LIMIT_MB = 10.0, 300.0
SMALL = 100_000  # bytes
HEADER = b'{"schema": "hangdoc.recording/1"}\n'
LOOK = b'{"snapshot":{"host":"n","at_s":%d,"time":"","ranks":[%b]}}\n'
CONNECTION = b'{"local":"10.0.0.1","local_port":%d,"remote":"10.0.0.2","remote_port":%d,"state":"established"}'
EVERYBODY = {"name": "0", "desc": "default_pg", "ranks": str(list(range(40_000)))}
THREAD = b'{"tid":1,"name":"M","frames":[{"function":"f","file":"a.py","line":1,"short":"a.py"}]}'
FORMS = yaml.safe_load((ROOT / "hangdoc" / "postmortem" / "readers" / "_logs" / "patterns.yaml").read_text())
TRACE = b'{"version":"2.10","entries":[{"profiling_name":"nccl:all_reduce","pg_config":0}],"x":'
PYSPY = b'[{"pid":1,"thread_name":"MainThread","owns_gil":false,"thread_id":1,"frames":[]}]\n'
RAS = b'{"nccl_version":"2.28","communicators_count":1,"communicators":['


def zst(text: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=19, threads=1).compress(text)


def rank(pid: int) -> bytes:
    return b'{"target":{"pid":%d,"start_ticks":0,"host":"n","rank":%d}}' % (pid, pid)


def deep_key(depth: int) -> bytes:
    """A pickle with tuples within tuples as a key."""
    return b"\x80\x02}()" + b"\x85" * depth + b"K\x01u."


def frames(count: int, one: bytes) -> bytes:
    """Many zstd frames in a row."""
    return zst(one) * count


BOMBS: dict[str, Callable[[], bytes]] = {
    "2 KB of zstd, 2 GB of text": lambda: frames(160, bytes(range(32, 127)) * 150_000)[:SMALL],
    "zeros under gzip": lambda: gzip.compress(bytes(95 * 2**20)),
    "zstd frames of zeros": lambda: frames(2000, bytes(2**20))[:SMALL],
    "zstd cut off": lambda: zst(b"a line\n" * 30_000_000)[:-20],
    "a line without an end": lambda: zst(b"Traceback (most recent call last): " * 8_000_000),
    "empty lines": lambda: zst(b"\n" * 250_000_000),
    "lines that mean something": lambda: zst(
        b"".join(f"{form['anchor']} 1 2 3\n".encode() * 20_000 for form in FORMS)
    ),
    "tracebacks": lambda: zst(b'Traceback (most recent call last):\n  File "a.py", line 1, in f\nE: x\n' * 2_000_000),
    "faulthandler": lambda: zst(b'Thread 0x01 (most recent call first):\n  File "a.py", line 1 in f\n' * 1_500_000),
    "py-spy": lambda: zst(b"Process 1: python\nPython v3.11.7 (x)\n\nThread 1 (idle): \"M\"\n    f (a.py:1)\n" * 10**6),
    "py-spy JSON of lists": lambda: zst(PYSPY + b"[{},\n" + (b"[]," * 4000 + b"\n") * 1200 + b"[]]"),
    "py-spy JSON, damaged again and again": lambda: zst(PYSPY + b'[{"a":' * 4_000_000),
    "py-spy JSON of lines": lambda: zst(PYSPY + b"\n" * 25_000_000),
    "RAS JSON of ranks": lambda: zst(RAS + b'{"ranks":[\n' + (b"{}," * 4000 + b"\n") * 1200 + b"{}]}]}"),
    "dump in JSON, of lists": lambda: zst(TRACE + b"[" + b"[]," * 5_000_000 + b"[]]}"),
    "dump in JSON, nested": lambda: TRACE + b"[" * 90_000,
    "dump in JSON, a long number": lambda: TRACE + b"1" * 90_000 + b"}",
    "dump in JSON, long text": lambda: zst(TRACE + b'"' + b"x" * 10**8 + b'"}'),
    "dump in JSON, of keys": lambda: zst(TRACE + b"{" + b",".join(b'"%x":1' % n for n in range(10_000)) + b"}}"),
    "dump of lists": lambda: zst(b"\x80\x02](" + b"]" * 15_000_000 + b"e."),
    "dump of text": lambda: zst(b"\x80\x02](" + b"X\x01\x00\x00\x00x" * 2_500_000 + b"e."),
    "dump, deep key": lambda: zst(deep_key(12_000_000)),
    "dump, a key that takes years to hash": lambda: b"\x80\x02}()" + b"2\x86" * 60 + b"K\x01u.",
    "dump, cut off": lambda: zst(b"\x80\x02}(X\x07\x00\x00\x00entries](" + b"}(K\x01K\x02u" * 2_000_000),
    "dump of members": lambda: zst(pickle.dumps({"version": "2.10", "pg_config": {"0": EVERYBODY}, "entries": []}, 2)),
    "recording of ranks": lambda: zst(HEADER + LOOK % (1, b",".join([rank(1)] * 400_000))),
    "recording of ranks that differ": lambda: zst(HEADER + LOOK % (1, b",".join(map(rank, range(20_000))))),
    "recording of as many ranks as may be": lambda: zst(HEADER + LOOK % (1, b",".join(map(rank, range(4_000))))),
    "recording of many such looks": lambda: zst(
        HEADER + b"".join(LOOK % (n, b",".join(map(rank, range(1_000)))) for n in range(400))
    ),
    "recording of lists": lambda: zst(
        HEADER + b'{"snapshot":{"host":"n","at_s":1,"time":"","records":{"x":[' + b"[]," * 5_000_000 + b"[]]}}}\n"
    ),
    "recording of connections": lambda: zst(
        HEADER
        + LOOK
        % (
            1,
            b'{"target":{"pid":1,"start_ticks":0,"host":"n","rank":0},"alive":true,"records":{"sockets":{"connections":['
            + b",".join(CONNECTION % (n % 50_000, n) for n in range(20_000))
            + b"]}}}",
        )
    ),
    "recording of threads": lambda: zst(
        HEADER
        + LOOK
        % (
            1,
            b'{"target":{"pid":1,"start_ticks":0,"host":"n","rank":0},"alive":true,"records":{"stacks":{"threads":['
            + b",".join([THREAD] * 40_000)
            + b"]}}}",
        )
    ),
    "recording of hosts": lambda: zst(
        HEADER + b"".join(b'{"snapshot":{"host":"%x","at_s":1,"time":""}}\n' % n for n in range(25_000))
    ),
    "recording of verdicts": lambda: zst(
        HEADER + LOOK % (1, rank(1)) + b'{"verdict":{"status":"stalled","job":{"id":"none"}}}\n' * 1_000_000
    ),
    "recording of empty lines": lambda: zst(HEADER + b"\n" * 200_000_000),
    "torchelastic": lambda: zst(b'{"message":{"extraInfo":' + b"[" + b"[]," * 5_000_000 + b"[]]}}"),
    "torchelastic, nested": lambda: b'{"message":{"extraInfo":{},"message":' + b"[" * 900 + b"]" * 900 + b"}}",
    "ss": lambda: zst(
        b"Netid State  Recv-Q Send-Q Local Address:Port Peer Address:Port Process\n"
        + b'tcp   ESTAB  0 0 10.0.0.1:1 10.0.0.2:2 users:(("python",pid=1,fd=3))\n' * 1_000_000
    ),
}  # fmt: skip


def test_the_bombs_are_small() -> None:
    """Some of them only: to make each takes as long as to read it."""
    assert len(BOMBS["dump, deep key"]()) <= SMALL


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_costs_little(tmp_path: Path, name: str) -> None:
    bomb = tmp_path / "bomb"
    content = BOMBS[name]()
    bomb.write_bytes(content)
    assert len(content) <= SMALL, f"{len(content)} bytes: no small file"
    with paced() as pace:
        took_s, peak_mb, said = reported(bomb)
    assert took_s < LIMIT_S * pace.mean, f"{took_s:.1f} s of CPU time, {pace.mean:.2f} times a quiet machine's: {said}"
    assert peak_mb < LIMIT_MB, said


@pytest.mark.parametrize("name", ["2 KB of zstd, 2 GB of text", "recording of lists", "dump in JSON, of lists"])
def test_what_was_cut_is_said(tmp_path: Path, name: str) -> None:
    bomb = tmp_path / "bomb"
    bomb.write_bytes(BOMBS[name]())
    said = reported(bomb)[2]
    assert re.search(r"too much for its size|more memory than a \w+ of its size", said), said


MEASURED = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, timeout=240)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
figures = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6
print(json.dumps([*figures, done.returncode, done.stdout.decode(), done.stderr.decode()]))
"""


def reported(path: Path) -> tuple[float, float, str]:
    """CPU seconds and peak MB that `hangdoc report` takes, and what it says on stderr; it must end by itself.

    A small process in between starts it: what a process has taken before exec counts as its child's (getrusage(2)).
    """
    command = os.environ.get("HANGDOC") or str(Path(sys.executable).parent / "hangdoc")
    measured = [sys.executable, "-I", "-c", MEASURED, command, "report", "--json", str(path)]
    done = subprocess.run(measured, capture_output=True, check=True)
    cpu_s, peak_mb, code, out, said = json.loads(done.stdout)
    assert code in (0, 1, 2, 3), said
    assert "internal error" not in said
    for line in out.splitlines():
        json.loads(line)
    return cpu_s, peak_mb, said
