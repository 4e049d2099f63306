"""How many times slower than float32 this CPU computes in bfloat16: measured, on request only.

hangdoc imports no torch: the job's own Python is asked, in a process of its own. It inherits the environment, and with
it what limits the job (ONEDNN_MAX_CPU_ISA).
"""

from __future__ import annotations

import json
import subprocess
import sys

from hangdoc.doctor import Check
from hangdoc.fold import seconds

NAME = "bfloat16"
LIMIT_S = 60.0  # loading torch from a cold disk takes most of it
SLOWER = 1.5  # times float32: more is no gain in any respect but memory
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
    try:
        answer = subprocess.run(
            [python, "-c", _SCRIPT],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        version, float32_s, bfloat16_s = json.loads(answer.stdout.splitlines()[-1])
        times = float(bfloat16_s) / float(float32_s)
        took = f"{seconds(bfloat16_s)} against {seconds(float32_s)}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(NAME, None, f"could not be measured: {error}"[:200], fix)
    except (IndexError, ValueError, TypeError, ZeroDivisionError):
        said = (answer.stderr.strip().splitlines() or ["no answer"])[-1]
        return Check(NAME, None, f"could not be measured with {python}: {said}"[:200], fix)
    what = f"product of {_SIZE} x {_SIZE} matrices, 1 thread, torch {version}"
    if times >= SLOWER:
        told = f"{times:.0f}" if times >= 10 else f"{times:.1f}"
        detail = f"{told} times slower than float32 here: {took} ({what})"
        return Check(NAME, False, detail, "compute in float32 on this CPU; see: hangdoc runbook bf16-on-cpu")
    return Check(NAME, True, f"no slower than float32 here: {took} ({what})")
