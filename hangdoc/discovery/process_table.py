"""The processes of this host at one instant, and the signs of a training process."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from hangdoc.discovery.environment import Identity, identity
from hangdoc.system import procfs
from hangdoc.system.sockdiag import read_proc_tables

# Threads that only a process in a c10d process group has; a forked worker inherits none. Names have 15 characters.
_GROUP_THREAD = re.compile(r"gloo_tcp_loop|pt_gloo_|pt_nccl_|pt_mpi_|pt_ucc_|pt_xccl_|pt_hccl_|NCCL ")
_STORE_THREAD = "pt_tcpstore"
_LIBRARIES = (b"libtorch_cpu", b"libtorch.so", b"libtorch_python", b"libmpi.so", b"libmpich", b"libmpi_")
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*[a-z]?")
_LAUNCHERS = frozenset(
    (
        *("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "orted", "prun", "prte", "prted", "prterun"),
        *("hydra_pmi_proxy", "hydra_bstrap_proxy", "srun", "salloc", "sbatch", "slurmstepd", "slurmd"),
        *("torchrun", "pt_elastic", "accelerate", "accelerate-launch", "deepspeed", "ds", "horovodrun"),
        *("fabric", "lightning", "composer", "colossalai", "raylet"),
    )
)
_LAUNCHER_MODULES = frozenset(
    (
        *("torch.distributed.run", "torch.distributed.launch", "horovod.runner.launch", "composer.cli.launcher"),
        *("accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
        *("deepspeed.launcher.launch", "deepspeed.launcher.runner", "lightning.fabric.cli", "lightning_fabric.cli"),
    )
)
_HELPER = re.compile(
    r"multiprocessing\.(?:resource_tracker|semaphore_tracker|forkserver)|loky\.backend|debugpy[./]adapter"
    r"|torch[./]_inductor[./]compile_worker|(?:^|/)(?:wandb[\w-]*|tensorboard|py-spy|hangdoc)(?:\.[\w.]+)?$"
)

_HANGDOC = re.compile(r"(?:^|/)hangdoc(?:[./]cli(?:\.py)?)?$")


@dataclass(frozen=True, slots=True)
class Proc:
    """A process, as far as we may read it."""

    pid: int
    ppid: int
    start_ticks: int
    state: str
    comm: str
    command: tuple[str, ...]
    readable: bool  # its environment could be read
    identity: Identity | None


@dataclass(frozen=True, slots=True)
class Connections:
    """The TCP ports of a process."""

    listens: frozenset[int]
    remotes: frozenset[tuple[str, int]]  # established, or still connecting
    stores: frozenset[int]  # of a store it serves: it is also a client of its own store, unlike with data connections
    clients_local: bool  # every client of those stores is on this host
    local: bool  # every peer is on this host


class Table:
    """All processes of the host; costlier signs are read on first use."""

    def __init__(self) -> None:
        found = (_proc(pid) for pid in procfs.numbers("/proc"))
        self.procs: dict[int, Proc] = {proc.pid: proc for proc in found if proc}
        self._children: dict[int, list[int]] = {}
        for proc in sorted(self.procs.values(), key=lambda proc: (proc.start_ticks, proc.pid)):
            self._children.setdefault(proc.ppid, []).append(proc.pid)
        self.runs_python = cache(lambda pid: _runs_python(self.procs[pid]))
        self.embeds_python = cache(_embeds_python)
        self.threads = cache(_threads)
        self.loads_framework = cache(_loads_framework)
        self.connections = cache(_connections)

    def children(self, pid: int) -> Sequence[int]:
        """Children in order of creation."""
        return self._children.get(pid, ())

    def ancestors(self, pid: int) -> Iterator[int]:
        """From the parent upwards."""
        seen = {pid}
        while pid in self.procs and (pid := self.procs[pid].ppid) in self.procs and pid not in seen:
            seen.add(pid)
            yield pid

    def descendants(self, pid: int) -> Iterator[int]:
        for kid in self.children(pid):
            yield kid
            yield from self.descendants(kid)

    def in_process_group(self, pid: int) -> bool:
        """True if it runs the threads of a process group (gloo, NCCL, ...)."""
        return any(_GROUP_THREAD.match(name) for name in self.threads(pid))

    def serves_store(self, pid: int) -> bool:
        """True if it runs the threads of a TCPStore server."""
        return any(name.startswith(_STORE_THREAD) for name in self.threads(pid))

    def is_python(self, pid: int) -> bool:
        """True if it runs Python, as the interpreter or embedded."""
        return self.runs_python(pid) or self.embeds_python(pid)

    def is_launcher(self, pid: int) -> bool:
        proc = self.procs[pid]
        words = proc.command or (proc.comm,)
        names = {proc.comm, os.path.basename(words[0]), os.path.basename(program(words))}
        return bool(names & _LAUNCHERS) or _module(program(words)) in _LAUNCHER_MODULES

    def is_helper(self, pid: int) -> bool:
        """True if its name is that of a helper process: never a rank."""
        proc = self.procs[pid]
        if proc.comm.startswith("pt_data_"):
            return True
        return bool(_HELPER.search(program(proc.command))) and not self.in_process_group(pid)

    def is_supervisor(self, pid: int) -> bool:
        """True for a `hangdoc watch -- COMMAND`: the ranks of its job run below it, and it adopts their orphans."""
        command = self.procs[pid].command
        return "watch" in command and "--" in command and bool(_HANGDOC.search(program(command)))

    def is_fork(self, pid: int) -> bool:
        """True if multiprocessing created it: a fork of its parent, or a spawned interpreter."""
        proc, parent = self.procs[pid], self.procs.get(self.procs[pid].ppid)
        return "spawn_main(" in program(proc.command) or (parent is not None and proc.command == parent.command)


def program(command: Sequence[str]) -> str:
    """The script, module or code that an interpreter runs; else the executable."""
    words = iter(command[1:])
    if not command or not _PYTHON.fullmatch(os.path.basename(command[0])):
        return command[0] if command else ""
    for word in words:
        if word in ("-X", "-W", "--check-hash-based-pycs"):
            next(words, None)
        elif word.startswith("-") and not word.startswith("--") and word[-1:] in ("m", "c"):
            return next(words, "")
        elif not word.startswith("-"):
            return word
    return command[0]


def _module(path: str) -> str:
    """`.../site-packages/torch/distributed/run.py` as `torch.distributed.run`."""
    return re.sub(r".*(?:site|dist)-packages/|\.py$", "", path).replace("/", ".")


def _runs_python(proc: Proc) -> bool:
    executable = procfs.link(f"/proc/{proc.pid}/exe") or (proc.command[0] if proc.command else "")
    return bool(_PYTHON.fullmatch(os.path.basename(executable.removesuffix(" (deleted)"))))


def _embeds_python(pid: int) -> bool:
    return b"libpython" in (procfs.read(f"/proc/{pid}/maps") or b"")


def _proc(pid: int) -> Proc | None:
    stat = procfs.stat(pid)
    if stat is None or stat.kernel:
        return None
    environ = procfs.environ(pid)
    who = identity(environ) if environ else None
    command = procfs.strings(f"/proc/{pid}/cmdline") or ()
    return Proc(pid, stat.ppid, stat.start_ticks, stat.state, stat.comm, command, environ is not None, who)


def _threads(pid: int) -> frozenset[str]:
    names = (procfs.text(f"/proc/{pid}/task/{tid}/comm") for tid in procfs.threads(pid))
    return frozenset(name.strip() for name in names if name)


def _loads_framework(pid: int) -> bool:
    """True if PyTorch or MPI is loaded."""
    return bool(procfs.maps_any(pid, _LIBRARIES))


def _connections(pid: int) -> Connections:
    links = (procfs.link(f"/proc/{pid}/fd/{fd}") or "" for fd in procfs.descriptors(pid))
    inodes = {int(link[8:-1]): [pid] for link in links if link.startswith("socket:[")}
    try:
        rows = list(read_proc_tables(pid, inodes)) if inodes else []
    except OSError:
        rows = []
    talks = [row for row in rows if row["state"] in ("established", "syn_sent", "close_wait")]
    near = [row for row in talks if row["remote"] == row["local"] or row["remote"].startswith("127.")]
    listens = frozenset(row["local_port"] for row in rows if row["state"] == "listen")
    stores = listens & {row["remote_port"] for row in near}
    return Connections(
        listens,
        frozenset((row["remote"], row["remote_port"]) for row in talks),
        stores,
        all(row in near for row in talks if row["local_port"] in stores),
        len(near) == len(talks),
    )
