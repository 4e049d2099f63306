"""Source that a text has beside its stacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoc.postmortem.readers import ReadContext
from hangdoc.postmortem.readers._input_file import Source
from hangdoc.postmortem.readers._text_source import text_source
from hangdoc.postmortem.readers.pasted_source import EXCERPTS, READER, SourceExcerpt, _told_lines


def excerpts(text: str, folder: Path) -> list[SourceExcerpt]:
    path = folder / "stdin"
    path.write_text(text)
    context = ReadContext(print)
    source = text_source(Source(path, "stdin", path.stat().st_size), context)
    if READER.recognises(source):
        list(READER.read(source, context))
    return list(context.shared.get(EXCERPTS, []))


@pytest.mark.parametrize(
    "text",
    [
        "eval.py\n```\n 50  p = infer(x)\n 51  if rank == 0:\n 52      p = gather(p)\n```\n",
        "> in eval.py:\n> 50 p = infer(x)\n> 51 if rank == 0:\n> 52     p = gather(p)\n",
        "src/eval.py says\n50: p = infer(x)\n51: if rank == 0:\n52:     p = gather(p)\n",
        "this is eval.py, from line 50\n   50 | p = infer(x)\n   51 | if rank == 0:\n   52 |     p = gather(p)\n",
    ],
)
def test_lines_with_numbers(text: str, tmp_path: Path) -> None:
    (found,) = excerpts(text, tmp_path)
    assert Path(found.file or "").name == "eval.py"
    assert found.numbers == (50, 51, 52)
    assert [row.strip() for row in found.rows] == ["p = infer(x)", "if rank == 0:", "p = gather(p)"]


@pytest.mark.parametrize(
    ("command", "numbers"),
    [
        ("$ sed -n 50,53p src/eval.py", (50, 51, 52, 53)),
        ("me@n1:~/run$ sed -n '50,51p' src/eval.py", (50, 51)),
        ("$ awk 'NR>=50 && NR<=53' src/eval.py", (50, 51, 52, 53)),
        ("$ cat src/eval.py", (1, 2, 3, 4)),
    ],
)
def test_lines_that_a_command_prints(command: str, numbers: tuple[int, ...], tmp_path: Path) -> None:
    rows = "p = infer(x)\nif rank == 0:\n\n    p = gather(p)\n"
    found = excerpts(f"{command}\n{rows}it hangs there:\n", tmp_path)[0]
    assert (found.file, found.numbers) == ("src/eval.py", numbers)


@pytest.mark.parametrize("bar", ["", "| "])
def test_a_comparison_is_no_bar(bar: str, tmp_path: Path) -> None:
    text = f"eval.py:\n50  {bar}p = infer(x)\n51  {bar}if step > 10:\n52  {bar}    p = gather(p)\n"
    (found,) = excerpts(text, tmp_path)
    assert found.rows[1].strip() == "if step > 10:"


def test_lines_with_a_gap(tmp_path: Path) -> None:
    text = "loop.py:\n131  if bad(x):\n132      return skip()\n...\n139  x.backward()\n141  clip(x)\n"
    (found,) = excerpts(text, tmp_path)
    assert found.numbers == (131, 132, 139, 141)


def test_lines_without_numbers(tmp_path: Path) -> None:
    (found,) = excerpts("the code:\n\nfor x in it:\n    y = f(x)\n    dist.barrier()\n\nit hangs there\n", tmp_path)
    assert (found.file, found.numbers) == (None, None)
    assert found.rows[0] == "for x in it:"


@pytest.mark.parametrize(
    "text",
    [
        "step 1: loss 2.0\nstep 2: loss 1.9\nif you know why:\nplease tell me\n",
        '  File "t.py", line 50, in f\n    if rank == 0:\n  File "t.py", line 60, in g\n    x = gather(x)\n',
        "1 0.5 0.2\n2 0.4 0.1\n3 0.4 0.1\n",
        "with 4 gpus:\n  1: 20 ms\n  2: 21 ms\n",
    ],
)
def test_what_is_no_source(text: str, tmp_path: Path) -> None:
    assert not excerpts(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("line 119 is `out = model(x)`, 124 is `n += loss.item()`", {119: "out = model(x)", 124: "n += loss.item()"}),
        ("L88: `dist.barrier()`", {88: "dist.barrier()"}),
        ("train.py:34 = `loss.item()`", {34: "loss.item()"}),
        ("line 12 is `for x in loader:`", {12: "for x in loader:", 13: "    ..."}),
        ("at line 12 it is slower than `main`, and 3 is `x`", {}),
    ],
)
def test_lines_that_a_sentence_quotes(text: str, rows: dict[int, str]) -> None:
    found = list(_told_lines(f"two of them stand still. {text}\n"))
    assert {n: row for one in found for n, row in zip(one.numbers or (), one.rows, strict=True)} == rows
