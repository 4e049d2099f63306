"""Processes of another user that claim absurd ranks and sizes, beside an honest job: the lie stays with the liar."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from tests.support.other_user import peak_rss_bytes, stranger

pytestmark = pytest.mark.quiet  # a target that eats what it can get leaves nothing to others

SLEEPER = "import time\nprint('ready', flush=True)\ntime.sleep(600)\n"
HONEST = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29871", "TORCHELASTIC_RUN_ID": "honest"}
LIES = {
    "two hundred thousand": {"RANK": "0", "WORLD_SIZE": "200000"},
    "a million on loopback": {"RANK": "0", "WORLD_SIZE": "1000000", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29872"},
    "a million elsewhere": {"RANK": "3", "WORLD_SIZE": "1000000", "MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "29873"},
    "no number of ranks": {"RANK": "0", "WORLD_SIZE": str(10**18)},
    "no number": {"RANK": "0", "WORLD_SIZE": "٣" * 1000},
    "a rank beyond": {"RANK": "999999", "WORLD_SIZE": "4", "MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "29874"},
    "a part of the honest job": {**HONEST, "RANK": "7", "WORLD_SIZE": "200000"},
    "a rank of the honest job": {**HONEST, "RANK": "1"},
}
LIMIT_BYTES = 100 << 20  # an honest job of two takes 60 MB


@contextmanager
def honest() -> Iterator[list[int]]:
    """Two ranks of root."""
    with ExitStack() as stack:
        pids = []
        for rank in range(2):
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", SLEEPER],
                    env={"PATH": os.defpath, **HONEST, "RANK": str(rank)},
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            pids.append(process.pid)
        yield pids


def verdicts(pids: Sequence[int]) -> tuple[list[dict[str, Any]], int]:
    """What hangdoc says of these processes, and the most memory that it took (bytes)."""
    command = os.environ.get("HANGDOC") or os.path.join(os.path.dirname(sys.executable), "hangdoc")
    with tempfile.TemporaryFile("w+") as out:
        words = [command, "watch", "--once", "--json", "--pids", ",".join(map(str, pids))]
        process = subprocess.Popen(words, stdout=out, stderr=subprocess.DEVNULL)
        taken = 0
        while process.poll() is None:
            with suppress(OSError, StopIteration):  # it has just ended
                taken = max(taken, peak_rss_bytes(process.pid))  # not ru_maxrss: that begins with what pytest takes
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
        out.seek(0)
        return [json.loads(line) for line in out], taken


def timeless(verdict: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in verdict.items() if name not in ("stalled_for_s", "hangdoc")}


@pytest.mark.timeout(60)
def test_the_honest_job_is_judged_as_without_the_liars() -> None:
    with ExitStack() as stack:
        mine = stack.enter_context(honest())
        liars = [stack.enter_context(stranger(SLEEPER, environment=lie)).pid for lie in LIES.values()]
        (alone,), _ = verdicts(mine)
        beside, taken = verdicts([*mine, *liars])
        assert [rank["pid"] for rank in alone["job"]["ranks"]] == mine
        (same,) = [one for one in beside if {rank["pid"] for rank in one["job"]["ranks"]} & {*mine}]
        same["job"]["id"] = same["job"]["id"].partition("@")[0].partition(" (pid")[0]  # two jobs may not have one name
        assert timeless(same) == timeless(alone)
        theirs = {rank["pid"]: one for one in beside if one is not same for rank in one["job"]["ranks"] if rank["pid"]}
        assert sorted(theirs) == sorted(liars)
        told = {lie: [lack["why"] for lack in theirs[pid]["unseen"]] for lie, pid in zip(LIES, liars, strict=True)}
        assert any("is ignored" in why for why in told["a million on loopback"])
        assert any("WORLD_SIZE=1000000000000000000 is ignored" in why for why in told["no number of ranks"])
        assert any("is ignored" in why for why in told["no number"])
        assert any("RANK=999999 is not below WORLD_SIZE=4" in why for why in told["a rank beyond"])
        assert taken < LIMIT_BYTES
