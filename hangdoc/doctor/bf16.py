"""Benchmark of bfloat16 against float32 on this CPU, on request only.

hangdoc does not import torch: it runs the job's Python in a separate process, which inherits the job's settings
(ONEDNN_MAX_CPU_ISA). As root, hangdoc runs a foreign Python only as its owner (`user_of`).
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
LIMIT_S = 60.0  # mostly loading torch from a cold disk
MAX_BYTES = 1 << 16  # of its output: one line, perhaps after warnings
SLOWER = 1.5  # times float32; from here on bfloat16 saves only memory
NOBODY = 65534  # user nobody, group nogroup
# The part of root's environment passed to another user's Python: nothing that may be a secret.
_KEPT = ("PATH", "LANG", "LC_", "LD_LIBRARY_PATH", "ONEDNN_", "DNNL_", "OMP_", "MKL_", "KMP_", "ATEN_", "TORCH_")
_SIZE = 512
# One thread, to be less affected by other processes; the best run within half a second per type.
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
    """Time a matrix product in both types with that interpreter's torch; takes about 3 s on one core."""
    fix = "name the job's Python: hangdoc doctor --bf16 --python /path/to/python"
    path = os.path.abspath(shutil.which(python) or python)
    user = user_of(path) if os.geteuid() == 0 and path != os.path.abspath(sys.executable) else None
    if user is not None and os.path.exists(path):
        fix = f"as root, hangdoc ran this Python as user {user}; run this command as the job's user"
    try:
        output = _run(path, user)
    except OSError as error:
        return Check(NAME, None, f"could not be measured: {error}"[:200], fix)
    try:
        version, float32_s, bfloat16_s = _answer(output)
        times = bfloat16_s / float32_s
        took = f"{seconds(bfloat16_s)} against {seconds(float32_s)}"
    except (ValueError, TypeError, ArithmeticError):
        last = (output.strip().splitlines() or ["no answer"])[-1]
        return Check(NAME, None, f"could not be measured with {python}: {last}"[:200], fix)
    what = f"product of {_SIZE} x {_SIZE} matrices, 1 thread, torch {version}"
    if times >= SLOWER:
        factor = f"{times:.0f}" if times >= 10 else f"{times:.1f}"
        detail = f"{factor} times slower than float32 here: {took} ({what})"
        return Check(NAME, False, detail, "compute in float32 on this CPU; see: hangdoc runbook bf16-on-cpu")
    return Check(NAME, True, f"no slower than float32 here: {took} ({what})")


def user_of(python: str) -> int | None:
    """The user that root runs an interpreter as: the owner of the folders on its path, who controls its modules.

    `nobody` if several users own them or anybody can write there; None (root) if only root can reach it.
    """
    try:
        owners = {owner for owner, _ in programs.path_owners(python)} - {0}
    except OSError:
        return NOBODY  # running it will report the error
    if len(owners) == 1:
        return owners.pop()
    return None if not owners and programs.only_root_may_change(python) and _out_of_reach(python) else NOBODY


def _out_of_reach(python: str) -> bool:
    """True if only root can enter some folder on the path, so that everything next to the interpreter is root's too."""
    folder = os.path.realpath(os.path.dirname(python))
    above = [folder, *map(str, Path(folder).parents)]
    return any(not os.stat(one).st_mode & (stat.S_IXGRP | stat.S_IXOTH) for one in above)


def _run(python: str, user: int | None) -> str:
    """Output of the interpreter; raises OSError (TimeoutError after LIMIT_S)."""
    other: dict[str, Any] = {}
    if user is not None:
        kept = {key: value for key, value in os.environ.items() if key.startswith(_KEPT)}
        other = {"user": user, "group": NOBODY, "extra_groups": [], "env": kept}
    process = subprocess.Popen(
        [python, "-c", _SCRIPT],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",  # `python -c` imports from its working directory
        start_new_session=True,  # detached from our terminal, so that it cannot inject input
        **other,
    )
    output, until_s = b"", time.monotonic() + LIMIT_S
    with process:
        assert process.stdout is not None
        try:
            while len(output) < MAX_BYTES:
                left_s = until_s - time.monotonic()
                if left_s <= 0 or not select.select([process.stdout], [], [], left_s)[0]:
                    raise TimeoutError(f"no answer in {LIMIT_S:g} s")
                if not (piece := os.read(process.stdout.fileno(), MAX_BYTES)):
                    break
                output += piece
        finally:
            process.kill()
    return output.decode(errors="replace")


def _answer(output: str) -> tuple[str, float, float]:
    """Version, float32 s, bfloat16 s; raises ValueError or TypeError if the output lacks them."""
    for line in reversed(output.splitlines()):
        if line.startswith("["):
            version, float32_s, bfloat16_s = json.loads(line)
            return str(version)[:40], float(float32_s), float(bfloat16_s)
    raise ValueError("no answer")
