"""Probe `host`: the machine, its CPU, memory and kernel; none changes while we watch."""

from __future__ import annotations

import os

from hangdoc.evidence import Host
from hangdoc.system import procfs
from probes import Observation, Request, Tier


class HostProbe:
    name = "host"
    scope = "host"
    tier = Tier.LOOK
    needs = "nothing"
    record = Host
    order = 10
    steady = True

    def observe(self, request: Request) -> Observation:
        known = getattr(request.previous, "records", {}).get(self.name)
        return Observation({}, host=known or _host())


def _host() -> Host:
    kernel = os.uname()
    cpu = _first_cpu()
    flags = cpu.get("flags") or cpu.get("Features")  # x86, arm
    memory = dict(line.split(":", 1) for line in (procfs.text("/proc/meminfo") or "").splitlines() if ":" in line)
    total = memory.get("MemTotal", "").split()
    return Host(
        name=kernel.nodename,
        boot_id=(procfs.text("/proc/sys/kernel/random/boot_id") or "").strip() or None,
        kernel=kernel.release,
        cores=os.cpu_count() or 1,
        cpu_model=cpu.get("model name"),  # absent on arm
        cpu_flags=frozenset(flags.split()) if flags else None,
        memory_bytes=int(total[0]) * 1024 if total else None,
    )


def _first_cpu() -> dict[str, str]:
    """The first processor of /proc/cpuinfo. Reads only the start, because each core costs the kernel time."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            block = file.read(8192).split("\n\n")[0]
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.splitlines())}


PROBE = HostProbe()
