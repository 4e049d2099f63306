"""Soak of the daemon: jobs come and go, some hang and are killed, PIDs come again, clocks step, the disk fills,
receivers fail, the daemon is killed.

    python -m tests.tools.soak --seconds 1200

Run as root, in a PID namespace of its own in which PIDs come again soon. The ranks are fakes, without torch. The clock
of the daemon is Debian's libfaketime: that of the machine belongs to all.
What must hold: flat memory, descriptors, threads and children; one incident and one alert for each hang, and none for a
healthy job.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from hangdoc.incident.store import IncidentStore
from hangdoc.system import procfs
from tests.benchmarks import short_jobs
from tests.benchmarks.measure import alone, memory_mib, met
from tests.support.daemon import Daemon, Receiver, daemon, script

BESIDE = 4  # jobs at a time
RANKS = 3
LIFE_S = (8.0, 40.0)  # of a healthy job
HANGS = 0.25  # share of jobs that hang
SEEN_S = 12.0  # a job makes steps for so long before it hangs
REPORTED_S = 60.0  # within which a hang must be announced
WARM_S = 60.0  # until memory and descriptors are compared
GROWTH = 1.10  # of memory since then
FAILS = 0.5  # share of alerts that the receiver refuses
DISK_BYTES = 24 << 20  # of the file system with the state folder
PID_STEP = 200  # PIDs in use: the namespace starts again from the first one beyond this distance
DRAIN_S = 330.0  # at most, for the last alerts: the longest pause of their backoff is 300 s
CLOCK_LIBRARY = "libfaketimeMT.so.1"  # Debian: faketime
CLOCK_STEPS = ("+0", "+3600", "-120", "-5400", "+2")  # s off, one after the other: NTP, a battery, a wrong time zone
STEP_EVERY_S = 61.0
SETTLE_S = 15.0  # after the last alert: an alert too many would come now
CHILD_S = 20.0  # longer than any child is needed
LEFT = 30  # descriptors and threads without a job
CPU_PERCENT = 10  # the default budget is for 8 ranks that stay, and makes looks rarer where jobs come and go
KILL_EVERY_S = 97.0  # kill -9 of the daemon,
FULL_EVERY_S, FULL_S = 90.0, 30.0  # while the disk, that fills up now and then,
ROOM_S = 10.0  # has had room for so long: what never got on a disk is not there after a kill


@dataclass(slots=True)
class Run:
    """A job of the soak."""

    job: short_jobs.Job
    ends_s: float
    hangs_s: float | None = None  # when a rank is stopped; None: it stays healthy
    hung: bool = False


@dataclass(slots=True)
class Footprint:
    """The largest values after the warm-up, beside those at its end."""

    first: tuple[float, int, int] | None = None
    most: list[tuple[float, int, int]] = field(default_factory=list)

    def take(self, pid: int) -> None:
        with suppress(OSError, IndexError):
            now = memory_mib(pid)[1], len(procfs.descriptors(pid)), len(procfs.threads(pid))
            self.first = self.first or now
            self.most.append(now)


@contextmanager
def small_disk() -> Iterator[Path]:
    """A file system of DISK_BYTES."""
    with tempfile.TemporaryDirectory() as name:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", name], check=True)
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "-l", name], check=True)


def stepping_clock(file: Path) -> dict[str, str]:
    """The environment of a process whose wall clock is off by what `file` says; the monotonic clocks stay right."""
    library = next(Path("/usr/lib").glob(f"*/faketime/{CLOCK_LIBRARY}"), None)
    if library is None:
        raise SystemExit(f"the soak steps the daemon's clock with {CLOCK_LIBRARY}: apt-get install faketime")
    return {
        "LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1",
    }  # fmt: skip


def reuse_pids() -> None:
    """Let the next PIDs be low ones again, in this PID namespace: ns_last_pid of proc_sys_kernel(5)."""
    with suppress(OSError):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(PID_STEP))


def soak(seconds: float, disk: Path, sources: Path) -> list[tuple[str, str, str, str]]:
    """What the run came to, beside the limits."""
    receiver, chance = Receiver(FAILS), random.Random(18)
    config = f'[alerts.webhook]\nurl = "{receiver.url}"\n[metrics]\nport = 0\n[budget]\ncpu_percent = {CPU_PERCENT}\n'
    running: list[Run] = []
    finished: list[Run] = []
    footprints: list[Footprint] = []
    number, log = 0, list[str]()
    filler = disk / "filler"
    clock = sources / "clock"
    began_s = killed_s = started_s = time.monotonic()
    with daemon(disk, config, stepping_clock(clock)) as start:
        now_running = start()
        footprints.append(Footprint())
        while time.monotonic() - began_s < seconds or running:
            now_s = time.monotonic()
            over = now_s - began_s >= seconds
            clock.write_text(CLOCK_STEPS[int((now_s - began_s) / STEP_EVERY_S) % len(CLOCK_STEPS)])
            while len(running) < BESIDE and not over:
                number += 1
                reuse_pids()
                job = short_jobs.started(sources, number, RANKS, script(disk))
                hangs = chance.random() < HANGS
                life_s = SEEN_S + REPORTED_S if hangs else chance.uniform(*LIFE_S)
                running.append(Run(job, now_s + life_s, now_s + SEEN_S if hangs else None))
            for run in list(running):
                announced = run.hung and is_reported(run, now_running)
                if run.hangs_s is not None and not run.hung and now_s >= run.hangs_s:
                    os.kill(run.job.ranks[-1].pid, signal.SIGSTOP)
                    run.hung = True
                    run.ends_s = now_s + REPORTED_S
                if now_s >= run.ends_s or (announced and now_s >= run.ends_s - REPORTED_S + 20):
                    end(run, chance)
                    running.remove(run)
                    finished.append(run)
            if now_s - started_s > WARM_S:
                footprints[-1].take(now_running.process.pid)
            cycle_s = (now_s - began_s) % FULL_EVERY_S
            is_full = cycle_s >= FULL_EVERY_S - FULL_S
            if now_s - killed_s > KILL_EVERY_S and not over and not is_full and cycle_s >= ROOM_S:
                killed_s = started_s = now_s
                now_running.end(signal.SIGKILL)
                log += now_running.lines
                now_running = start()
                footprints.append(Footprint())
                for run in running:
                    if run.hung:  # the new daemon has as long as the old one had
                        run.ends_s = now_s + REPORTED_S
            filler.unlink(missing_ok=True)
            if is_full:
                with suppress(OSError):
                    filler.write_bytes(bytes(DISK_BYTES))
            time.sleep(0.5)
        filler.unlink(missing_ok=True)
        receiver.fails = 0.0
        drained_s = time.monotonic() + DRAIN_S
        while is_awaited(finished, receiver) and time.monotonic() < drained_s:
            time.sleep(0.5)
        time.sleep(SETTLE_S)
        pid = now_running.process.pid
        left = len(procfs.descriptors(pid)) + len(procfs.threads(pid))
        children = lasting_children(pid)
        code = now_running.end()
        log += [*now_running.lines, *([f" error: it ended with {code}"] if code else [])]
    receiver.close()
    return rows(disk, finished, receiver, footprints, log, len(children), left)


def lasting_children(pid: int) -> set[int]:
    """Children that stay: the daemon may be examining a job of another test, with a py-spy for a few seconds."""
    children, until_s = set(procfs.children(pid)), time.monotonic() + CHILD_S
    while children and time.monotonic() < until_s:
        time.sleep(0.5)
        children &= set(procfs.children(pid))
    return children


def is_awaited(finished: list[Run], receiver: Receiver) -> bool:
    """True if the alert of a hang has not arrived, or was fired without its end: both may be in a pause of backoff."""
    told = {str(event["data"]["job"]) for event in tuple(receiver.events)}
    return not told.issuperset(run.job.name for run in finished if run.hung) or any(
        kinds["fired"] > kinds["resolved"] for kinds in receiver.kinds().values()
    )


def is_reported(run: Run, running: Daemon) -> bool:
    """True if the log has the verdict on the stopped rank of this job."""
    return any(run.job.name in line and "stopped by" in line for line in tuple(running.lines))


def end(run: Run, chance: random.Random) -> None:
    """A hung job is killed, or goes on and ends by itself; a healthy one ends."""
    if run.hung and chance.random() < 0.5:
        for rank in run.job.ranks:
            rank.kill()
            rank.wait()
        run.job.source.unlink()
        return
    if run.hung:
        os.kill(run.job.ranks[-1].pid, signal.SIGCONT)
        time.sleep(1.0)
    run.job.end()


def rows(
    disk: Path,
    finished: list[Run],
    receiver: Receiver,
    footprints: list[Footprint],
    log: list[str],
    children: int,
    left: int,
) -> list[tuple[str, str, str, str]]:
    """The table; the wrong jobs go to stderr, with what the daemons said of them."""
    hung = {run.job.name for run in finished if run.hung}
    events = {event["id"]: event for event in receiver.events}.values()
    by_job: dict[str, list[str]] = {}
    ids: dict[str, set[str]] = {}
    for event in events:
        name = str(event["data"]["job"])
        by_job.setdefault(name, []).append(event["type"].removeprefix("hangdoc.incident."))
        ids.setdefault(name, set()).add(event["subject"])
    fired = {name: kinds.count("fired") for name, kinds in by_job.items()}
    resolved = {name: kinds.count("resolved") for name, kinds in by_job.items()}
    missed = sorted(hung - fired.keys())
    twice = sorted(name for name, count in fired.items() if count > 1 or len(ids[name]) > 1)
    false = sorted(fired.keys() - hung)
    without_end = sorted(name for name in fired if resolved[name] != fired[name])
    growth = [max(most[0] for most in one.most) / one.first[0] for one in footprints if one.first and one.most]
    open_ones = [record.id for record in IncidentStore(disk / "state").list() if record.ended is None]
    errors = [line for line in log if " error: " in line]
    counts = (
        ("hangs that were not announced", missed), ("jobs with two incidents or alerts", twice),
        ("alerts for healthy jobs", false), ("alerts without an end", without_end),
        ("incidents on disk without an end", open_ones), ("errors in the log", errors),
    )  # fmt: skip
    found = [("", "", "limit", ""), ("jobs, of them hung", f"{len(finished)}, {len(hung)}", "", "")]
    found += [(name, str(len(wrong)), "0", met(len(wrong), 0)) for name, wrong in counts]
    larger = max(growth, default=1.0)
    found += [
        ("memory since the first minute", f"{100 * larger - 100:+.1f} %", f"{100 * GROWTH - 100:+.0f} %",
         met(larger, GROWTH)),
        ("descriptors and threads left", str(left), str(LEFT), met(left, LEFT)),
        ("children left", str(children), "0", met(children, 0)),
    ]  # fmt: skip
    for name, wrong in counts:
        for one in wrong[:20]:
            print(f"{name}: {one}", file=sys.stderr)
            print(*(f"  {line}" for line in log if one in line), sep="\n", file=sys.stderr)
            for event in events:
                if event["data"]["job"] == one:
                    print(f"  {json.dumps(event)}", file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=1200.0)
    seconds = parser.parse_args().seconds
    alone("tests.tools.soak")
    with small_disk() as disk, tempfile.TemporaryDirectory() as sources:
        table = soak(seconds, disk, Path(sources))
    for row in table:
        print("\t".join(row))
    return int(any(row[3] == "MISSED" for row in table))


if __name__ == "__main__":
    sys.exit(main())
