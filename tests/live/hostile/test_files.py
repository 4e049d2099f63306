"""Files that a stranger's process names: none is waited for, none is read that he may not read, none harms the rest."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.other_user import Stranger, hangdoc, stranger
from tests.support.pace import slowness

RANK = {"RANK": "0", "WORLD_SIZE": "1"}
# A process whose only frame is, as it says, on line 3 of the file that it was given.
NAMING = """
import os, sys
name = os.path.abspath(sys.argv[1])
if "fifo" in name:
    os.mkfifo(name)
exec(compile("import time\\nprint('ready', flush=True)\\ntime.sleep(600)\\n", name, "exec"))
"""
SECRET = "password_of_root = time.sleep('swordfish')"


def look(rank: Stranger, **options: Any) -> tuple[dict[str, Any], str]:
    done = hangdoc("watch", "--once", "--json", "--pids", str(rank.pid), **options)
    assert rank.process.poll() is None
    verdict: dict[str, Any] = json.loads(done.stdout)
    assert [found["pid"] for found in verdict["job"]["ranks"]] == [rank.pid], done.stderr
    return verdict, done.stdout + done.stderr


def source_lacks(verdict: dict[str, Any]) -> list[str]:
    return [lack["why"] for lack in verdict["unseen"] if lack["probe"] == "source"]


@pytest.mark.parametrize(
    ("name", "said"), [("fifo.py", "a FIFO"), ("/dev/stdin", "links"), ("/dev/zero", "a device"), ("/", "a folder")]
)
def test_an_odd_source_name_costs_one_line(name: str, said: str) -> None:
    with stranger(NAMING, name, environment=RANK) as rank:
        started = time.monotonic()
        verdict, _ = look(rank, limit_s=50.0, stdin=b"\n\nours\n")
        assert time.monotonic() - started < 45.0 * slowness()
    lacks = source_lacks(verdict)
    assert len(lacks) == 1, lacks
    assert said in lacks[0]


def test_what_the_stranger_may_not_read_is_not_shown(tmp_path: Path) -> None:
    for folder in (tmp_path, *list(tmp_path.parents)[:-2]):
        folder.chmod(0o755)
    private = tmp_path / "private.py"
    private.write_text(f"import time\n\n{SECRET}\n")
    private.chmod(0o600)
    os.utime(private, (1, 1))
    with stranger(NAMING, str(private), environment=RANK) as rank:
        verdict, shown = look(rank)
    assert "swordfish" not in shown
    assert ["its user may not read it" in why for why in source_lacks(verdict)] == [True]


def test_a_source_that_overruns_the_parser_is_said_and_no_more(tmp_path: Path) -> None:
    for folder in (tmp_path, *list(tmp_path.parents)[:-2]):
        folder.chmod(0o755)
    deep = tmp_path / "deep.py"
    deep.write_text("\n\nx = a" + ".b" * 300_000 + "()\n")
    os.utime(deep, (1, 1))
    with stranger(NAMING, str(deep), environment=RANK) as rank:
        verdict, _ = look(rank)
        lines = [lack for lack in verdict["unseen"] if lack["probe"] in ("source", "types", "locks")]
    assert ["could not be parsed" in lack["why"] for lack in lines] == [True], lines
