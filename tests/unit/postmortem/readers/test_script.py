"""Training scripts as sources."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hangdoc.postmortem.readers import ReadContext, load_readers
from hangdoc.postmortem.readers.script import SCRIPTS
from tests.support.samples import SCRIPT, reader, source


def test_script_path_is_shared(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    shutil.copy(SCRIPT, path)
    first = next(one for one in load_readers() if one.recognises(source(path)))
    context = ReadContext(lambda text: None)
    assert first.name == "Python script"
    assert list(first.read(source(path), context)) == []
    assert list(context.shared[SCRIPTS]) == [path]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.py", b"\0\1\2import os\n"),
        ("train.py", b"epoch 3 loss 0.2\n"),
        ("train.log", b"import torch\n"),
    ],
)
def test_not_a_script(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert not reader("script").recognises(source(path))
