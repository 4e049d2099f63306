"""torchelastic's error file, valid and malformed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hangdoc.evidence import End, Stacks
from hangdoc.evidence.logs import Logs
from hangdoc.evidence.pieces import Piece
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers.elastic import READER

CALLSTACK = """\
Traceback (most recent call last):
  File "/opt/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 357, in wrapper
    return f(*args, **kwargs)
  File "/work/train.py", line 7, in main
    raise ValueError("x")
ValueError: no label
"""
ERROR = {
    "message": {
        "message": "ValueError: no label",
        "extraInfo": {"py_callstack": CALLSTACK, "timestamp": "1740830400"},
    }
}


def read(path: Path, content: Any, problems: list[str] | None = None) -> list[Any]:
    file = path / "none_ab" / "attempt_1" / "2" / "error.json"
    file.parent.mkdir(parents=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    source = Source(file, str(file), file.stat().st_size)
    assert READER.recognises(source)
    return list(READER.read(source, ReadContext((problems if problems is not None else []).append)))


def test_exception_stack_and_exit(tmp_path: Path) -> None:
    logs, stacks, end = read(tmp_path, ERROR)
    assert [(piece.process.rank, piece.process.run) for piece in (logs, stacks, end)] == [(2, 1)] * 3
    assert isinstance(logs, Piece)
    assert isinstance(logs.record, Logs)
    (said,) = logs.record.said
    assert (said.kind, said.fields["type"], said.at) == ("exception", "ValueError", 1740830400.0)
    assert isinstance(stacks.record, Stacks)
    assert stacks.record.threads[0].frames[0].function == "main"
    assert end.record == End(code=1)


def test_exit_code_that_the_agent_adds(tmp_path: Path) -> None:
    with_code = {"message": {**ERROR["message"], "errorCode": -11}}
    assert read(tmp_path, with_code)[-1].record == End(signal=11)


@pytest.mark.parametrize(
    "message", ["text", None, 5, [], {"message": [1], "extraInfo": 3}, {"extraInfo": {"timestamp": []}}]
)
def test_other_forms_raise_nothing(message: Any, tmp_path: Path) -> None:
    first, *_ = read(tmp_path, {"message": message})
    assert first.probe == "logs"


@pytest.mark.parametrize("text", ['{"message": {"mess', '{"message"' + "[" * 5000])
def test_damage_is_reported(text: str, tmp_path: Path) -> None:
    problems: list[str] = []
    assert read(tmp_path, text, problems) == []
    assert len(problems) == 1
