"""The report on 1 GiB of logs of 512 ranks: MB/s on one core and peak memory, a file a rank and all ranks in one file.

python -m tests.benchmarks.logs [--mib 1024] [--ranks 512]

The logs are synthetic: what a trainer writes every step, some of NCCL's chatter, and at the end the watchdog's report
of a collective to which one rank did not come. Each reading is a process of its own. Exit code 1 where a limit is not
kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.measure import met, table
from tests.support.paths import ROOT

LIMIT_MB_S, LIMIT_MIB = 100.0, 200.0
ABSENT = 47  # rank that does not come to the last collective
READ = """
import json, resource, sys, time
from pathlib import Path
from hangdoc.postmortem.report import report
folder = Path(sys.argv[1])
began, cpu = time.monotonic(), time.process_time()
job = report([folder]).jobs[0].verdict
wall, cpu = time.monotonic() - began, time.process_time() - cpu
first = job.findings[0] if job.findings else None
named = f"{first.playbook}: {[one.rank for one in first.culprits]}" if first else job.status
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
print(json.dumps([wall, cpu, size, peak, len(job.job.ranks), named]))
"""


def chatter(rank: int, lines: int, draw: random.Random) -> Iterator[str]:
    """What a rank writes while all is well."""
    host = f"node{rank // 8:03}"
    for step in range(lines):
        minute, second = divmod(step, 60)
        stamp = f"2026-01-02 {3 + minute // 60 % 20:02}:{minute % 60:02}:{second:02},{draw.randrange(1000):03}"
        if step % 50 == 49:
            process = f"{host}:{1000 + rank}:{2000 + rank} [{rank % 8}]"
            yield f"[rank{rank}]: {process} NCCL INFO Channel {step % 32:02}/0 : via P2P/CUMEM"
        elif step % 50 == 25:
            yield f"[rank{rank}]: [{stamp}] [WARNING] [optim.py:88:clip] grad norm {draw.random():.4f}: rate reduced"
        else:
            yield (
                f"[rank{rank}]: [{stamp}] [INFO] [trainer.py:214:train] step={step} loss={draw.random():.5f} "
                f"lr=1.0e-04 grad_norm={draw.random():.3f} tokens/s={draw.randrange(99999)} mem=71.3GiB"
            )


def incident(rank: int) -> str:
    """The watchdog's last words."""
    if rank == ABSENT:
        return ""
    head = f"[rank{rank}]:[E102 23:38:47.7146{rank:05} ProcessGroupNCCL.cpp:683] "
    return (
        f"{head}[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1900, OpType=ALLREDUCE, "
        "NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600013 milliseconds before timing out.\n"
        f"{head}[PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: 1900 "
        "PG status: last enqueued work: 1900, last completed work: 1899\n"
    )


def write(folder: Path, mib: int, ranks: int) -> tuple[Path, Path]:
    """A folder with a file a rank, and one with all in one file."""
    draw = random.Random(0)
    sample = "\n".join(chatter(1, 2000, draw))
    lines = max(10, mib * 2**20 // ranks // (len(sample) // 2000))
    apart, together = folder / "apart", folder / "together"
    apart.mkdir()
    together.mkdir()
    for rank in range(ranks):
        text = "\n".join(chatter(rank, lines, draw)) + "\n"
        (apart / f"rank_{rank}.log").write_text(text + incident(rank))
    with (together / "all.log").open("w") as file:
        sources = [(apart / f"rank_{rank}.log").open() for rank in range(ranks)]
        for _ in range(lines + 2):
            file.writelines(source.readline() for source in sources)
        for source in sources:
            source.close()
    return apart, together


def read(folder: Path) -> tuple[float, float, float, float, int, str]:
    """Wall s, CPU s, MB, peak MiB, ranks, and who is named; on one core."""
    core = min(os.sched_getaffinity(0))
    done = subprocess.run(
        [sys.executable, "-c", READ, str(folder)], cwd=ROOT, capture_output=True, text=True, check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )  # fmt: skip
    wall, cpu, size, peak, ranks, named = json.loads(done.stdout.splitlines()[-1])
    return wall, cpu, size, peak, ranks, named


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=512)
    told = parser.parse_args(arguments)
    rows = [("logs", "MB", "s", "MB/s of CPU time", "", "peak MiB", "", "ranks", "named")]
    kept = True
    with tempfile.TemporaryDirectory() as name:
        for folder in write(Path(name), told.mib, told.ranks):
            wall, cpu, size, peak, ranks, named = read(folder)
            kept &= size / cpu >= LIMIT_MB_S and peak <= LIMIT_MIB
            speed = (f"{size / cpu:.0f}", met(LIMIT_MB_S, size / cpu))
            memory = (f"{peak:.0f}", met(peak, LIMIT_MIB))
            rows.append((folder.name, f"{size:.0f}", f"{wall:.1f}", *speed, *memory, str(ranks), named))
    table(f"reading the logs of {told.ranks} ranks on one core", rows)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
