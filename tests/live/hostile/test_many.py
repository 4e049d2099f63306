"""A target with more threads, descriptors or mappings than any rank has costs little, and what is left out is said."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from hangdoc.system import procfs
from tests.support.other_user import stranger
from tests.support.pace import slowness

pytestmark = pytest.mark.quiet  # a target that eats what it can get leaves nothing to others

LIMIT_S, LIMIT_MIB = 45.0, 120  # of `watch --once`, which watches for 9 to 14 s by itself
RANK = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}
THREADS = """
import threading, time
threading.stack_size(65536)
event = threading.Event()
for _ in range(6000):
    threading.Thread(target=event.wait, daemon=True).start()
print("ready", flush=True)
time.sleep(120)
"""
DESCRIPTORS = """
import os, time
kept = [os.open("/etc/passwd", os.O_RDONLY) for _ in range(17_000)]
print("ready", flush=True)
time.sleep(120)
"""
MAPPINGS = """
import ctypes, mmap, time
pages = 64_000
memory = mmap.mmap(-1, 4096 * pages)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
for page in range(0, pages, 2):  # each second page is a mapping of its own
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + 4096 * page), ctypes.c_size_t(4096), 0)
print("ready", flush=True)
time.sleep(120)
"""


def once(pid: int) -> tuple[dict[str, object], float, float]:
    """The verdict, the seconds it took, and the largest RSS (MiB) of hangdoc itself."""
    command = os.environ.get("HANGDOC") or str(Path(sys.executable).parent / "hangdoc")
    began = time.monotonic()
    with Popen([command, "watch", "--once", "--json", "--pids", str(pid)], stdout=PIPE) as process:
        assert process.stdout is not None
        verdict: dict[str, object] = json.loads(process.stdout.read())
        took, (_, status, used) = time.monotonic() - began, os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return verdict, took, used.ru_maxrss / 1024


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("source", "said"),
    [
        pytest.param(THREADS, f"6001 threads; only the oldest {procfs.MAX_THREADS} are", id="threads"),
        pytest.param(DESCRIPTORS, f"only the first {procfs.MAX_DESCRIPTORS} open files", id="descriptors"),
        pytest.param(MAPPINGS, None, id="mappings"),
    ],
)
def test_a_target_that_has_many(source: str, said: str | None) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if source is DESCRIPTORS and 0 <= hard < 17_100:
        pytest.skip(f"a process may have {hard} open files here, which is not many")
    with stranger(f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, ({hard}, {hard}))" + source,
                  environment=RANK) as one:  # fmt: skip
        verdict, took, memory = once(one.pid)
    assert took < LIMIT_S * slowness()
    assert memory < LIMIT_MIB
    unseen = verdict["unseen"]
    assert isinstance(unseen, list)
    assert said is None or any(said in lack["why"] for lack in unseen)
