"""Each reader recognises only its own format, and no input makes one raise."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hangdoc.postmortem.readers import ReadContext, load_readers
from hangdoc.postmortem.readers._text_source import marked_parts, text_source
from tests.benchmarks.logs import chatter
from tests.support import samples
from tests.support.pace import within
from tests.support.samples import source
from tests.tools.fuzz_readers import Corpus, attempt, mutated

ANY_TEXT = "logs"  # takes what nobody else does
READERS = {type(one).__module__.rpartition(".")[2]: one for one in load_readers()}
SAMPLES = list(samples.every())
QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize(("module", "path"), SAMPLES, ids=[f"{module}/{path.name}" for module, path in SAMPLES])
def test_recognised_by_its_reader_only(module: str, path: Path) -> None:
    taken = [name for name, reader in READERS.items() if name != ANY_TEXT and reader.recognises(source(path))]
    assert taken == ([] if module in ("none", ANY_TEXT) else [module])


@pytest.mark.parametrize(("module", "path"), SAMPLES, ids=[f"{module}/{path.name}" for module, path in SAMPLES])
def test_first_reader_that_recognises(module: str, path: Path) -> None:
    first = next((type(one).__module__ for one in load_readers() if one.recognises(source(path))), None)
    assert first == (None if module == "none" else f"hangdoc.postmortem.readers.{module}")


@pytest.mark.parametrize("name", READERS)
def test_reader_help(name: str) -> None:
    reader = READERS[name]
    assert reader.name
    assert reader.help
    assert reader.order >= 0


@pytest.mark.parametrize("name", READERS)
@QUICK
@given(content=st.binary(max_size=4000))
def test_random_bytes(name: str, content: bytes, tmp_path: Path) -> None:
    attempt(READERS[name], content, tmp_path)


@pytest.mark.parametrize("name", READERS)
@QUICK
@given(seed=st.integers(0, 2**32))
def test_damaged_samples(name: str, seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    attempt(READERS[name], mutated(draw, CORPUS.pick(draw, name), CORPUS), tmp_path)


@pytest.mark.parametrize(("module", "path"), SAMPLES, ids=[f"{module}/{path.name}" for module, path in SAMPLES])
def test_truncated_samples(module: str, path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    for at in range(0, len(content), max(1, len(content) // 12)):
        for reader in READERS.values() if module == "none" else [READERS[module]]:
            attempt(reader, content[:at], tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_damaged_archive(name: str, tmp_path: Path) -> None:
    file = tmp_path / "dump.txt.gz"
    packed = gzip.compress(b"Process 1: python x.py\n" * 20_000, 1)
    file.write_bytes(packed[: len(packed) // 2])
    with suppress(OSError):
        list(READERS[name].read(source(file), ReadContext(lambda text: None)))


@pytest.mark.parametrize("name", READERS)
def test_ordinary_lines_are_refused_at_once(name: str, tmp_path: Path) -> None:
    """2 MB, of which each rank of a long job writes more: a reader that looks at every line takes minutes for all."""
    file = tmp_path / "rank_3.log"
    file.write_text("\n".join(chatter(3, 14_000, random.Random(0))))
    whole = text_source(source(file), ReadContext(lambda text: None))
    marks = getattr(READERS[name], "marks", None)
    text = marked_parts(whole, {name: marks}).get(name) if marks else whole
    if text is not None:
        with within(0.04):
            assert READERS[name].recognises(text) is (name == ANY_TEXT)


@pytest.mark.slow("20 MB through every reader")
@pytest.mark.parametrize("name", [name for name in READERS if name not in ("recording",)])
def test_a_line_of_20_megabytes(name: str, tmp_path: Path) -> None:
    file = tmp_path / "dump.txt"
    with file.open("wb") as out:
        out.write(HEADS.get(name, b""))
        for _ in range(20):
            out.write(b'(: "#0 {[ rank ' * (2**20 // 15))
    if not READERS[name].recognises(source(file)):
        return
    tracemalloc.start()
    try:
        with within(10.0):
            list(READERS[name].read(source(file), ReadContext(lambda text: None)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 2**20


HEADS = {module: path.read_bytes()[:2000] + b"\n" for module, path in SAMPLES if path.suffix == ".txt"}
CORPUS = Corpus(SAMPLES)
