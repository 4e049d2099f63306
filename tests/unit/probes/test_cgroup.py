"""Probe `cgroup`: the hierarchy of this machine with real groups, the other one as a tree of real files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from hangdoc.evidence import Target
from hangdoc.evidence.resources import Cgroup, CpuLimit, MemoryLimit
from hangdoc.system import procfs
from hangdoc.system.cgroups import parse_mounts
from probes import Request, Tier
from probes.cgroup import PROBE, read
from tests.support.polling import until

SPIN = "while True: pass"
MIB = 1 << 20


def tree(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


# --- v2, as the kernel writes its files --------------------------------------------------------------

UNIFIED = {
    "pods/cpu.max": "max 100000",
    "pods/memory.max": "max",
    "pods/memory.high": "max",
    "pods/one/cpu.max": "150000 100000",
    "pods/one/cpu.stat": "usage_usec 9\nnr_periods 100\nnr_throttled 40\nthrottled_usec 2500000",
    "pods/one/memory.max": str(512 * MIB),
    "pods/one/memory.high": str(400 * MIB),
    "pods/one/memory.current": str(399 * MIB),
    "pods/one/memory.events": "low 0\nhigh 77\nmax 3\noom 0\noom_kill 1",
    "pods/one/memory.stat": "anon 5\nworkingset_refault_anon 10\nworkingset_refault_file 600",
    "pods/one/memory.swap.current": "4096",
    "pods/one/rank/cpu.pressure": "some avg10=1.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0.00 total=3",
    "pods/one/rank/memory.pressure": "some avg10=1.00 total=700000\nfull avg10=0.00 total=250000",
}
WANTED = Cgroup(
    cpu=(CpuLimit("{}/pods/one/cpu.max", 1.5, 100, 40, 2.5),),
    memory=(MemoryLimit("{}/pods/one/memory.high", 400 * MIB, 399 * MIB, 77, 610, 4096, 1),),
    pressure_group="/pods/one/rank",
    cpu_stall_s=1.5,
    memory_stall_s=0.7,
    memory_full_s=0.25,
)


def mounted(root: Path, kind: str, options: str, shown: str = "/") -> str:
    return f"31 23 0:28 {shown} {root} rw,nosuid shared:9 - {kind} cgroup {options}"


def test_v2_tells_the_limits_at_every_level_and_the_pressure(tmp_path: Path) -> None:
    tree(tmp_path, UNIFIED)
    found = read("0::/pods/one/rank\n", list(parse_mounts(mounted(tmp_path, "cgroup2", "rw"))))
    assert str(found).replace(str(tmp_path), "{}") == str(WANTED)


def test_in_a_container_a_part_of_the_hierarchy_is_mounted(tmp_path: Path) -> None:
    """Under a private group namespace the path begins at that part; without one it is the host's."""
    tree(tmp_path, {name.removeprefix("pods/one/"): text for name, text in UNIFIED.items()})
    for line, shown in (("0::/rank", "/"), ("0::/pods/one/rank", "/pods/one")):
        found = read(line, list(parse_mounts(mounted(tmp_path, "cgroup2", "rw", shown))))
        assert [limit.cores for limit in found.cpu] == [1.5]
        assert found.memory_stall_s == 0.7


OLD = {
    "cpu/pod/cpu.cfs_quota_us": "20000",
    "cpu/pod/cpu.cfs_period_us": "100000",
    "cpu/pod/cpu.stat": "nr_periods 50\nnr_throttled 30\nthrottled_time 4000000000",
    "memory/pod/memory.limit_in_bytes": str(64 * MIB),
    "memory/pod/memory.usage_in_bytes": str(63 * MIB),
    "memory/pod/memory.failcnt": "12",
    "memory/pod/memory.stat": "swap 8192\nworkingset_refault 5",
    "memory/pod/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2",
    "memory/memory.limit_in_bytes": "9223372036854771712",
}


def test_v1_tells_the_same_from_a_folder_a_controller(tmp_path: Path) -> None:
    tree(tmp_path, OLD)
    table = "\n".join(mounted(tmp_path / name, "cgroup", f"rw,{name}") for name in ("cpu", "memory"))
    found = read("4:memory:/pod\n3:cpu:/pod\n1:name=systemd:/x\n", list(parse_mounts(table)))
    assert found.cpu == (CpuLimit(f"{tmp_path}/cpu/pod/cpu.cfs_quota_us", 0.2, 50, 30, 4.0),)
    file = f"{tmp_path}/memory/pod/memory.limit_in_bytes"
    assert found.memory == (MemoryLimit(file, 64 * MIB, 63 * MIB, 12, 5, 8192, 2),)


@pytest.mark.parametrize("membership", ["", "0::/", "garbage", "0::/../outside", "0::/pods"])
def test_where_nothing_is_limited_nothing_is_claimed(tmp_path: Path, membership: str) -> None:
    tree(tmp_path, {"pods/cpu.max": "max 100000", "pods/memory.max": "max", "pods/cpu.stat": "nr_periods x"})
    found = read(membership, list(parse_mounts(mounted(tmp_path, "cgroup2", "rw"))))
    assert (found.cpu, found.memory) == ((), ())


# --- what this machine has ---------------------------------------------------------------------------


def folder(controller: str) -> Path | None:
    """Where groups with this v1 controller, or of v2, may be made here."""
    old = Path("/sys/fs/cgroup", controller)
    if (old / "cgroup.procs").exists():
        return old
    unified = Path("/sys/fs/cgroup")
    controllers = unified / "cgroup.subtree_control"
    return unified if controllers.exists() and controller in controllers.read_text().split() else None


@contextmanager
def group(controller: str) -> Iterator[Path]:
    above = folder(controller)
    if above is None or os.geteuid() != 0:
        pytest.skip(f"no {controller} controller to make a group with")
    path = above / f"hangdoc-test-{os.getpid()}"
    path.mkdir()
    try:
        yield path
    finally:
        for _ in range(100):
            try:
                path.rmdir()
                break
            except OSError:
                time.sleep(0.02)


@contextmanager
def running(code: str, *groups: Path) -> Iterator[Target]:
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        for path in groups:
            (path / "cgroup.procs").write_text(str(process.pid))
        stat = procfs.stat(process.pid)
        assert stat
        yield Target(process.pid, stat.start_ticks, "here", 0)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def observe(target: Target) -> Cgroup:
    found = PROBE.observe(Request([target], Tier.PULSE)).by_pid[target.pid]
    assert isinstance(found, Cgroup)
    return found


def test_a_process_that_burns_its_quota_is_throttled() -> None:
    with group("cpu") as path:
        if (path / "cpu.max").exists():
            (path / "cpu.max").write_text("10000 100000")
        else:
            (path / "cpu.cfs_period_us").write_text("100000")
            (path / "cpu.cfs_quota_us").write_text("10000")
        with running(SPIN, path) as target:

            def look() -> CpuLimit:
                return next(limit for limit in observe(target).cpu if limit.file.startswith(str(path)))

            first = look()
            last = until(look, lambda now: (now.throttled_s or 0.0) > (first.throttled_s or 0.0))
    assert last.cores == pytest.approx(0.1)
    assert (last.throttled_periods or 0) > (first.throttled_periods or 0)
    assert (last.throttled_s or 0.0) > (first.throttled_s or 0.0)


def test_a_limit_that_is_hit_counts_its_hits() -> None:
    with group("memory") as path:
        (path / ("memory.max" if (path / "memory.max").exists() else "memory.limit_in_bytes")).write_text(str(32 * MIB))
        file = f"/tmp/hangdoc-test-{os.getpid()}"
        # A file of holes fills the cache without a disk, which other tests may keep busy for long.
        holes = f"f = open({file!r}, 'w+b', buffering=0)\nf.truncate(1 << 28)"
        read = f"{holes}\nwhile True:\n  f.seek(0)\n  while f.read(1 << 20): pass"
        try:
            with running(read, path) as target:
                found = until(
                    lambda: next(limit for limit in observe(target).memory if limit.file.startswith(str(path))),
                    lambda seen: seen.hits,
                )
        finally:
            Path(file).unlink(missing_ok=True)
    assert found.bytes == 32 * MIB
    assert (found.used_bytes or 0) <= 33 * MIB


def test_a_process_that_has_ended_has_no_record() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert PROBE.observe(Request([Target(process.pid, 1, "here", 0)], Tier.PULSE)).by_pid == {}
