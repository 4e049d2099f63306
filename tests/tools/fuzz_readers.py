"""Fuzz the readers: damage samples, mix them, and read the result with every reader.

    python -m tests.tools.fuzz_readers [--seconds 60] [--seed N] [--reader NAME | --report] [--keep FOLDER]

With --report, damaged pasted fragments go through the whole of `hangdoc report`, up to the verdict. An exception other
than OSError, more than LIMIT_S or LIMIT_BYTES of memory for one file is a finding: the file is kept in FOLDER and the
exit code is 1.
"""

from __future__ import annotations

import argparse
import gzip
import random
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from hangdoc.postmortem.readers import ReadContext, Reader, Source, load_readers
from tests.support import pasted, samples
from tests.support.pace import slowness

LIMIT_S = 5.0
LIMIT_BYTES = 256 * 2**20
MAX_BYTES = 200_000  # bytes of an input

TOKENS = [
    b"Process 1: ",
    b"Process 999999999: python --rank 3 --local_rank=2\n",
    b'Thread 0x7F (active+gil): "',
    b"Thread 12 (idle)\n",
    b"    f (x.py:3)\n",
    b"        Locals:\n",
    b"            a: [1, 2\n",
    b"            token: sk-proj-abcdefghijklmnop\n",
    b"Current thread 0x00007f (most recent call first):\n",
    b'  File "x.py", line 3 in f\n',
    b"Fatal Python error: Segmentation fault\n",
    b"Timeout (0:00:05)!\n",
    b'Thread 3 (Thread 0x7f (LWP 12) "x"):\n',
    b"#0  0x00007f in f (a=...) at x.c:3\n",
    b"TID 12:\n",
    b"State Recv-Q Send-Q Local\n",
    b"#0-0 (78db921d1c117b4a) MISMATCH\n",
    b"  Rank 7 has launched up to operation 60 -- [process information not found]\n",
    b"| NVIDIA-SMI 550 Driver Version: 550 CUDA Version: 12 |\n",
    b"=== rank 3 ===\n",
    b"gn1: torchrun --nnodes 2 --node_rank x --master_addr gn1 RANK=) WORLD_SIZE=4 a.py\n",
    b"rank 3: step 812, before all_reduce\n",
    b"==> rank_3.txt <==\n",
    b"----\nnode-a\n----\n",
    b"\x1b[31m",
    b"\x1b]0;x\x07",
    b"[red]x[/red]",
    b"<script>alert(1)</script>",
    b"\xff\xfe",
    b"\x00",
    b"\r",
    b"\r\n",
    b"\xe2\x80\xae",
    b"-1",
    b"1e999",
    b"null",
    b'"frames":',
    b"\\",
    b'"',
    b"ESTAB 0 0 [::ffff:1.2.3.4%eth0]:1 10.0.0.1:2 "
    b'users:(("python",pid=1,fd=2)) timer:(on,1sec,3) ino:3 rto:1 lastsnd:9\n',
    *(one * 300 for one in (b"[", b"{", b"(", b")", b" ", b"1", b'{"a":')),
]


class Corpus:
    """Samples by the reader they belong to."""

    def __init__(self, every: Sequence[tuple[str, Path]]) -> None:
        self.by_reader: dict[str, list[bytes]] = {}
        for module, path in every:
            content = path.read_bytes()
            if len(content) <= MAX_BYTES:
                self.by_reader.setdefault(module, []).append(content)
        self.all = [content for of in self.by_reader.values() for content in of]

    def pick(self, draw: random.Random, module: str | None = None) -> bytes:
        """One of a reader, mostly; else of any."""
        own = self.by_reader.get(module or "", [])
        return draw.choice(own if own and draw.random() < 0.8 else self.all)


def mutated(draw: random.Random, content: bytes, corpus: Corpus) -> bytes:
    """A sample with one to a dozen damages."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 3, 5, 12))):
        draw.choice(DAMAGES)(draw, data, corpus)
        del data[MAX_BYTES:]
    return gzip.compress(bytes(data), 1) if draw.random() < 0.02 else bytes(data)


def _flip(draw: random.Random, data: bytearray, corpus: Corpus) -> None:
    for _ in range(draw.choice((1, 1, 4, 40))):
        if data:
            data[draw.randrange(len(data))] = draw.choice((draw.randrange(256), *b'0 9"()[]{}:\n\\/<-'))


def _cut(draw: random.Random, data: bytearray, corpus: Corpus) -> None:
    start, end = sorted((draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)))
    del data[start : draw.choice((end, start + 1, start + 20, len(data)))]


def _insert(draw: random.Random, data: bytearray, corpus: Corpus) -> None:
    at = draw.randrange(len(data) + 1)
    data[at:at] = draw.choice(TOKENS) * draw.choice((1, 1, 1, 5, 60))


def _repeat(draw: random.Random, data: bytearray, corpus: Corpus) -> None:
    start, end = sorted((draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)))
    at = draw.randrange(len(data) + 1)
    data[at:at] = bytes(data[start : min(end, start + 2000)]) * draw.choice((1, 2, 30))


def _splice(draw: random.Random, data: bytearray, corpus: Corpus) -> None:
    other = corpus.pick(draw)
    start = draw.randrange(len(other) + 1)
    data[draw.randrange(len(data) + 1) :] = other[start:]


def _lines(draw: random.Random, data: bytearray, corpus: Corpus) -> None:
    lines = bytes(data).split(b"\n")
    way = draw.randrange(4)
    if way == 0:
        draw.shuffle(lines)
    elif way == 1:
        lines = [draw.choice((b"> ", b"node-a: ", b"[rank3]:", b"\t", b"3: ")) + line for line in lines]
    elif way == 2:
        del lines[draw.randrange(len(lines))]
    else:
        lines = [line for line in lines for _ in range(draw.choice((1, 1, 1, 2)))]
    data[:] = b"\n".join(lines)


DAMAGES: list[Callable[[random.Random, bytearray, Corpus], None]] = [
    _flip,
    _flip,
    _cut,
    _insert,
    _insert,
    _repeat,
    _splice,
    _lines,
]


def attempt(reader: Reader, content: bytes, folder: Path, name: str = "rank_3.txt") -> int:
    """Reads it whatever it is, and returns how much was found; raises what the reader may not raise."""
    file = folder / name
    file.write_bytes(content)
    source = Source(file, str(file), len(content))
    reader.recognises(source)
    began = time.monotonic()
    try:
        found = list(reader.read(source, ReadContext(lambda text: None)))
    except OSError:
        return 0
    took = time.monotonic() - began
    assert took < LIMIT_S or took < LIMIT_S * slowness(), f"{reader.name}: {took:.1f} s for {len(content)} bytes"
    return len(found)


def judged(content: bytes) -> int:
    """The number of verdicts on a damaged fragment."""
    began = time.monotonic()
    count = len(pasted.verdicts(content.decode("utf-8", "surrogateescape")))
    if (took := time.monotonic() - began) > LIMIT_S:
        raise TimeoutError(f"{took:.1f} s for {len(content)} bytes")
    return count


def peak() -> int:
    """The most memory that this process ever held (bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--reader", default=None, help="only this one: pyspy, logs, ...")
    parser.add_argument("--report", action="store_true", help="pasted fragments, up to the verdict")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"))
    args = parser.parse_args()
    corpus = Corpus(list(samples.every()))
    readers = [(type(one).__module__.rpartition(".")[2], one) for one in load_readers()]
    readers = [(name, one) for name, one in readers if args.reader in (None, name)]
    if args.report:
        corpus.by_reader["report"] = [one.text.encode() for one in pasted.fragments()]
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(2**32)
    draw, until, tried, findings = random.Random(seed), time.monotonic() + args.seconds, 0, 0
    found: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < until and findings < 10:
            name, reader = ("report", None) if args.report else draw.choice(readers)
            content = mutated(draw, corpus.pick(draw, name), corpus)
            tried += 1
            before = peak()
            try:
                count = attempt(reader, content, Path(folder)) if reader else judged(content)
                found[name] = found.get(name, 0) + count
                if (grown := peak() - before) > LIMIT_BYTES:
                    raise MemoryError(f"{grown >> 20} MiB more for {len(content)} bytes")
            except Exception:
                findings += 1
                args.keep.mkdir(exist_ok=True)
                kept = args.keep / f"{name}-{seed}-{tried}"
                kept.write_bytes(content)
                print(f"--- {name}: {kept}", file=sys.stderr)
                traceback.print_exc(limit=-4)
    counts = ", ".join(f"{name} {count}" for name, count in sorted(found.items()))
    print(f"seed {seed}: {tried} inputs, {findings} findings; pieces found: {counts}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
