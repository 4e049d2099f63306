"""How many times slower than float32 this CPU computes in bfloat16: measured, on request only.

hangdoc imports no torch: the job's own Python is asked, in a process of its own. It inherits what limits the job
(ONEDNN_MAX_CPU_ISA). Root never runs somebody else's Python: it runs as the user whose it is (`user_of`).
"""

from __future__ import annotations

import json
import os
import select
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hangdoc.doctor.checks import Check
from hangdoc.formatting import seconds
from hangdoc.system import programs

NAME = "bfloat16"
LIMIT_S = 60.0  # loading torch from a cold disk takes most of it
MOST_BYTES = 1 << 16  # of what it may write: a line is wanted, and warnings may precede it
SLOWER = 1.5  # times float32: more is no gain in any respect but memory
NOBODY = 65534  # user and group that own nothing (nobody, nogroup)
# Of root's environment, what another user's Python is given: nothing that may be a secret.
_KEPT = ("PATH", "LANG", "LC_", "LD_LIBRARY_PATH", "ONEDNN_", "DNNL_", "OMP_", "MKL_", "KMP_", "ATEN_", "TORCH_")
_SIZE = 512
# One thread, so that other processes matter little; the best of what fits in half a second a type.
_SCRIPT = f"""
import json, time, torch
torch.set_num_threads(1)
def best(dtype):
    a, b = (torch.randn({_SIZE}, {_SIZE}).to(dtype) for _ in range(2))
    a @ b
    took, end = [], time.perf_counter() + 0.5
    while not took or time.perf_counter() < end:
        start = time.perf_counter()
        a @ b
        took.append(time.perf_counter() - start)
    return min(took)
print(json.dumps([torch.__version__, best(torch.float32), best(torch.bfloat16)]))
"""


def measure(python: str = sys.executable) -> Check:
    """Time of a product of matrices in both types, with the torch of that interpreter; takes some 3 s, one core."""
    fix = "name the job's Python: hangdoc doctor --bf16 --python /path/to/python"
    path = os.path.abspath(shutil.which(python) or python)
    user = user_of(path) if os.geteuid() == 0 and path != os.path.abspath(sys.executable) else None
    if user is not None and os.path.exists(path):
        fix = f"root runs no Python of others, so it ran as user {user}; run this command as the job's own user"
    try:
        said = _run(path, user)
    except OSError as error:
        return Check(NAME, None, f"could not be measured: {error}"[:200], fix)
    try:
        version, float32_s, bfloat16_s = _answer(said)
        times = bfloat16_s / float32_s
        took = f"{seconds(bfloat16_s)} against {seconds(float32_s)}"
    except (ValueError, TypeError, ArithmeticError):
        last = (said.strip().splitlines() or ["no answer"])[-1]
        return Check(NAME, None, f"could not be measured with {python}: {last}"[:200], fix)
    what = f"product of {_SIZE} x {_SIZE} matrices, 1 thread, torch {version}"
    if times >= SLOWER:
        told = f"{times:.0f}" if times >= 10 else f"{times:.1f}"
        detail = f"{told} times slower than float32 here: {took} ({what})"
        return Check(NAME, False, detail, "compute in float32 on this CPU; see: hangdoc runbook bf16-on-cpu")
    return Check(NAME, True, f"no slower than float32 here: {took} ({what})")


def user_of(python: str) -> int | None:
    """The user as whom root may run an interpreter, whose modules belong to whoever owns the folders on the way to it.

    That owner; where several own them, or everybody may get at it, nobody. None: root himself, for one that only he
    reaches.
    """
    try:
        owners = {owner for owner, _ in programs.path_owners(python)} - {0}
    except OSError:
        return NOBODY  # it will say so
    if len(owners) == 1:
        return owners.pop()
    return None if not owners and programs.only_root_may_change(python) and _out_of_reach(python) else NOBODY


def _out_of_reach(python: str) -> bool:
    """Some folder that leads to the interpreter may be entered by root alone: so what lies beside it is root's too."""
    folder = os.path.realpath(os.path.dirname(python))
    above = [folder, *map(str, Path(folder).parents)]
    return any(not os.stat(one).st_mode & (stat.S_IXGRP | stat.S_IXOTH) for one in above)


def _run(python: str, user: int | None) -> str:
    """What the interpreter writes; raises OSError (TimeoutError where it takes too long)."""
    other: dict[str, Any] = {}
    if user is not None:
        kept = {key: value for key, value in os.environ.items() if key.startswith(_KEPT)}
        other = {"user": user, "group": NOBODY, "extra_groups": [], "env": kept}
    process = subprocess.Popen(
        [python, "-c", _SCRIPT],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",  # `python -c` imports from where it runs
        start_new_session=True,  # out of reach of our terminal, into which it could type
        **other,
    )
    said, until_s = b"", time.monotonic() + LIMIT_S
    with process:
        assert process.stdout is not None
        try:
            while len(said) < MOST_BYTES:
                left_s = until_s - time.monotonic()
                if left_s <= 0 or not select.select([process.stdout], [], [], left_s)[0]:
                    raise TimeoutError(f"no answer in {LIMIT_S:g} s")
                if not (piece := os.read(process.stdout.fileno(), MOST_BYTES)):
                    break
                said += piece
        finally:
            process.kill()
    return said.decode(errors="replace")


def _answer(said: str) -> tuple[str, float, float]:
    """Version and times; raises ValueError or TypeError where they are not there."""
    for line in reversed(said.splitlines()):
        if line.startswith("["):
            version, float32_s, bfloat16_s = json.loads(line)
            return str(version)[:40], float(float32_s), float(bfloat16_s)
    raise ValueError("no answer")
