"""A verdict over a fleet of 1,200 simulated hosts of 8 ranks through ClusterShell: time, and the collector's memory.

python -m tests.benchmarks.fleet [--hosts 1200] [--live-hosts 125] [--seconds 60]

The hosts are synthetic: an agent of each is a shell that answers every command with the next line that a real agent
would have written, made of the recorded evidence of `uneven-batches`. Everything else is the product: the command line,
ClusterShell's workers, the wire, the analyses and the playbooks. Then the CPU that the collector of a live watch of
`--live-hosts` takes over so many seconds, on a healthy job, drawn out from a recorded one. Exit code 1 where a limit is
not kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from hangdoc.evidence import Process, RankEvidence, Snapshot, Sockets
from hangdoc.fleet import protocol
from hangdoc.fleet.encoder import Encoder
from hangdoc.recording import recorder
from tests.benchmarks.measure import cpu_s, met, table
from tests.support.cli import HANGDOC
from tests.support.paths import ROOT
from tests.support.replicated_ranks import PER_HOST, replicate

LIMIT_S, LIMIT_MIB = 20.0, 300.0
LIVE_CORES, START_S = 0.5, 20.0
HEALTHY = "tests/data/recordings/lightning_ok.jsonl.zst"
EVERY_S = 3.0  # between two looks at a healthy job
ROUND_S, MEGABYTE = 10.0, 1 << 20  # CPU time and bytes of one run through a recording

AGENT = """\
echo '{"schema":"hangdoc.agent/1","hangdoc":"$VERSION"}'
number=0
while read -r command; do
  case $command in
    *'"ping"'*) echo '{"pong":true}' ;;
    *) [ -e "$1/$((number + 1))" ] && number=$((number + 1)); cat "$1/$number" ;;
  esac
done
"""


def prepare(folder: Path, hosts: int, history: Sequence[Snapshot], odd: dict[int, int]) -> list[str]:
    """Write what each host's agent says, an answer a file; returns the names of the hosts."""
    shots = replicate(history, hosts * PER_HOST, odd)
    by_host: dict[str, list[Snapshot]] = {}
    for shot in shots:
        by_host.setdefault(shot.host, []).append(shot)
    asked = {*range(PER_HOST), *odd}
    for host, seen in by_host.items():
        seen = unasked(seen, asked)
        (folder / host).mkdir()
        writer = Encoder()
        for number, shot in enumerate(seen, 1):
            about = {rank.target: (f"{host} {rank.target.pid}", 4) for rank in shot.ranks}
            (folder / host / str(number)).write_bytes(protocol.line(writer.answer(number, shot, about)))
    (folder / "agent.sh").write_text(AGENT.replace("$VERSION", protocol.Hello().hangdoc))
    return list(by_host)


def recorded(path: str) -> tuple[Snapshot, ...]:
    (found,) = recorder.read(ROOT / path)
    return found.snapshots


def drawn_out(history: Sequence[Snapshot], rounds: int) -> list[Snapshot]:
    """The recorded looks over and over, `EVERY_S` apart, with clocks and counters that go on."""
    usual = [shot for shot in history if shot.tier == "look"]
    return [
        replace(shot, at_s=EVERY_S * number, ranks=tuple(on(rank, number // len(usual)) for rank in shot.ranks))
        for number, shot in ((number, usual[number % len(usual)]) for number in range(rounds))
    ]


def on(rank: RankEvidence, times: int) -> RankEvidence:
    """A rank that has gone through the whole recording so many times."""
    cpu, sockets = rank.records.get("cpu"), rank.records.get("sockets")
    records = dict(rank.records)
    if isinstance(cpu, Process):
        threads = tuple(replace(thread, cpu_s=thread.cpu_s + ROUND_S * times) for thread in cpu.threads)
        records["cpu"] = replace(cpu, cpu_s=cpu.cpu_s + ROUND_S * times, threads=threads)
    if isinstance(sockets, Sockets):
        more = MEGABYTE * times
        records["sockets"] = replace(
            sockets,
            connections=tuple(
                replace(
                    one,
                    bytes_sent=(one.bytes_sent or 0) + more,
                    bytes_acked=(one.bytes_acked or 0) + more,
                    bytes_received=(one.bytes_received or 0) + more,
                )
                for one in sockets.connections
            ),
        )
    return replace(rank, records=records)


def unasked(seen: list[Snapshot], asked: set[int]) -> list[Snapshot]:
    """In the recording every rank was examined; in a fleet one of those that stand alike: the others' stacks stay."""
    told = seen[:1]
    for shot in seen[1:]:
        before = {rank.target.pid: rank.records["stacks"] for rank in told[-1].ranks}
        ranks = tuple(
            rank
            if shot.tier != "examine" or rank.target.rank in asked
            else replace(rank, records={**rank.records, "stacks": before[rank.target.pid]})
            for rank in shot.ranks
        )
        told.append(replace(shot, ranks=ranks))
    return told


def watch(folder: Path, hosts: Sequence[str], *options: str) -> list[str]:
    from ClusterShell.NodeSet import NodeSet

    nodes = str(NodeSet.fromlist(list(hosts)))
    agent = f"sh {folder}/agent.sh {folder}/%h"
    return [*HANGDOC, "watch", "--via", "local", "--nodes", nodes, "--agent-command", agent, "--json", *options]


def once(folder: Path, hosts: Sequence[str]) -> tuple[float, float, dict[str, Any]]:
    """Seconds to the verdict, the collector's largest memory in MiB, and the verdict."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", PEAK, *watch(folder, hosts, "--once")[1:]], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    out, _ = process.communicate(timeout=300)
    took = time.monotonic() - began
    verdict, peak = out.strip().splitlines()
    return took, float(peak), json.loads(verdict)


# The collector's own peak since exec: `ru_maxrss` has that of whoever started it as well, and that is us.
PEAK = """\
import atexit, pathlib, runpy, sys
status = pathlib.Path("/proc/self/status")
atexit.register(lambda: print(int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024, flush=True))
sys.argv = ["hangdoc", *sys.argv[3:]]
runpy.run_module("hangdoc.cli", run_name="__main__")
"""


def live(folder: Path, hosts: Sequence[str], seconds: float) -> tuple[float, list[str]]:
    """Share of a core that the collector takes once it has started, and what it said."""
    process = subprocess.Popen(
        watch(folder, hosts), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(START_S)
    before = cpu_s(process.pid)[0]
    time.sleep(seconds)
    used = cpu_s(process.pid)[0] - before
    process.terminate()
    out, _ = process.communicate(timeout=30)
    return used / seconds, [json.loads(line)["event"] for line in out.splitlines()]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--hosts", type=int, default=1200)
    options.add_argument("--live-hosts", type=int, default=125)
    options.add_argument("--seconds", type=float, default=60)
    given = options.parse_args()
    rows, good = [], True
    for hosts in sorted({12, 120, given.hosts}):
        if hosts > given.hosts:
            continue
        ranks = hosts * PER_HOST
        with tempfile.TemporaryDirectory(prefix="hangdoc-fleet-") as name:
            names = prepare(Path(name), hosts, recorded("playbooks/uneven-batches/capture.jsonl.zst"), {ranks - 3: 2})
            took, peak, verdict = once(Path(name), names)
        findings = verdict["findings"]
        said = findings[0]["playbook"] if findings else verdict["status"]
        who = [culprit["rank"] for culprit in findings[0]["culprits"]] if findings else []
        right = said == "uneven-batches" and who == [ranks - 3]
        good &= right and took <= LIMIT_S and peak <= LIMIT_MIB
        rows.append((f"{hosts} hosts, {ranks} ranks", f"{took:.1f} s", f"{peak:.0f} MiB", f"{said} {who}"))
    head = ("fleet", f"verdict, at most {LIMIT_S:g} s", f"memory, at most {LIMIT_MIB:g} MiB", "said")
    table("The verdict over a fleet", [head, *rows])
    with tempfile.TemporaryDirectory(prefix="hangdoc-fleet-") as name:
        looks = int((START_S + given.seconds) / EVERY_S) + 10
        names = prepare(Path(name), given.live_hosts, drawn_out(recorded(HEALTHY), looks), {})
        cores, events = live(Path(name), names, given.seconds)
    good &= cores <= LIVE_CORES
    told = f"{given.live_hosts} hosts, {given.live_hosts * PER_HOST} ranks"
    head = ("fleet", "cores", f"limit {LIVE_CORES:g}", "events")
    table("The live watch of a fleet", [head, (told, f"{cores:.2f}", met(cores, LIVE_CORES), ", ".join(events))])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
