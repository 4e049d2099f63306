"""Small processes that look like the ranks of a training job from outside. They need no torch and end by themselves.

A node is what one process does; run as a program, this file is that process.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

GLOO = ("gloo_tcp_loop", "pt_gloo_runloop")
STORE = ("pt_tcpstore_uv",)
_LIBRARY = "libtorch_cpu.so"
_LIFE_S = 90


def node(
    name: str,
    kids: Sequence[dict[str, Any]] = (),
    *,
    env: Mapping[str, str] | None = None,
    threads: Sequence[str] = (),
    torch: bool = False,
    forks: Sequence[str] = (),
    dies: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """A process.

    `env` is added to its parent's; `threads` are names of threads it runs; `torch` maps a library of that name;
    `forks` are names of forked workers; `dies` leaves a zombie. `program` is the file or the argument list that Python
    is given, `args` what follows it; `shell` runs the kids from a shell; `serves` a port as a store does; `joins`
    connects to one; `spawns` are kids made by multiprocessing with the spawn method.
    """
    return {"name": name, "kids": list(kids), "env": dict(env or {}), "threads": list(threads), "torch": torch,
            "forks": list(forks), "dies": dies, **more}  # fmt: skip


@contextmanager
def running(root: dict[str, Any], folder: Path) -> Iterator[dict[str, int]]:
    """Start a tree of processes; yields their PIDs by name once every one of them is ready, and ends them all."""
    Path(folder, _LIBRARY).write_bytes(b"\0" * 4096)
    reading, writing = os.pipe()
    environ = {k: v for k, v in os.environ.items() if "RANK" not in k and not k.startswith("SLURM_")}
    environ |= {"PRETEND_FD": str(writing), "PRETEND_FOLDER": str(folder), **root["env"]}
    environ["PYTHONPATH"] = str(folder / "packages")
    process = subprocess.Popen(_command(root, folder), env=environ, pass_fds=[writing], start_new_session=True)
    os.close(writing)
    pids: dict[str, int] = {}
    try:
        with os.fdopen(reading) as lines:
            for _ in range(_count(root)):
                name, pid = lines.readline().split()
                pids[name] = int(pid)
        yield pids
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _count(one: dict[str, Any]) -> int:
    return 1 + len(one["forks"]) + sum(_count(kid) for kid in [*one["kids"], *one.get("spawns", ())])


def _command(one: dict[str, Any], folder: Path) -> list[str]:
    spec = json.dumps(one)
    if one.get("shell"):
        shell = Path(folder, one["name"] + ".sh")
        commands = [shlex.join(_command(kid, folder)) + " &" for kid in one["kids"]]
        shell.write_text(f"echo {one['name']} $$ >&$PRETEND_FD\n" + "\n".join(commands) + "\nwait\n")
        return ["bash", str(shell)]
    program = one.get("program", "train.py")
    if isinstance(program, list):  # python -m package.module: a package made for it
        module = Path(folder, "packages", *program[-1].split("."))
        module.parent.mkdir(parents=True, exist_ok=True)
        _link(module.with_suffix(".py"))
        for above in module.relative_to(folder / "packages").parents[:-1]:
            (folder / "packages" / above / "__init__.py").touch()  # else an installed package of that name wins
        return [sys.executable, *program, *one.get("args", ()), spec]
    path = Path(folder, program)
    path.parent.mkdir(parents=True, exist_ok=True)
    _link(path)
    return [sys.executable, str(path), *one.get("args", ()), spec]


def _link(path: Path) -> None:
    with suppress(FileExistsError):  # two processes of a tree may start the same program at once
        path.symlink_to(__file__)


# --- the process itself ---------------------------------------------------------------------------


def _act(one: dict[str, Any]) -> None:
    import mmap
    import socket
    import threading

    folder = Path(os.environ["PRETEND_FOLDER"])
    kept: list[Any] = []
    if one["torch"]:
        with Path(folder, _LIBRARY).open("rb") as file:
            kept.append(mmap.mmap(file.fileno(), 4096, access=mmap.ACCESS_READ))
    if "serves" in one:
        server = socket.create_server(("127.0.0.1", one["serves"]))
        kept += [server, socket.create_connection(("127.0.0.1", one["serves"])), server.accept()]
    if "joins" in one:
        kept.append(_connect(one["joins"]))
    for name in one["threads"]:
        started = threading.Event()
        threading.Thread(target=_thread, args=(name, started), daemon=True).start()
        started.wait()
    for name in one["forks"]:
        if os.fork() == 0:
            Path("/proc/self/comm").write_text("pt_data_worker")
            _ready(name)
            _live()
    for kid in one["kids"]:
        environ = os.environ | kid["env"]
        kept.append(subprocess.Popen(_command(kid, folder), env=environ, pass_fds=[int(os.environ["PRETEND_FD"])]))
    if one.get("spawns"):
        import multiprocessing

        os.set_inheritable(int(os.environ["PRETEND_FD"]), True)
        context = multiprocessing.get_context("spawn")
        for kid in one["spawns"]:
            os.environ.update(kid["env"])  # what is set here after the start, the worker has from its start on
            worker = context.Process(target=_spawned, args=(kid, os.dup(int(os.environ["PRETEND_FD"])), os.getpid()))
            worker.start()
            kept.append(worker)
    _ready(one["name"])
    if not one["dies"]:
        _live()


def _spawned(one: dict[str, Any], descriptor: int, parent: int) -> None:
    opened = os.open(f"/proc/{parent}/fd/{descriptor}", os.O_WRONLY)  # spawn passes none on
    os.environ["PRETEND_FD"] = str(opened)
    _act(one)


def _connect(port: int) -> Any:
    import socket
    import time

    for _ in range(1000):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            time.sleep(0.02)
    raise TimeoutError(f"nobody serves port {port}")


def _thread(name: str, started: Any) -> None:
    import threading

    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
    started.set()
    _live()


def _ready(name: str) -> None:
    os.write(int(os.environ["PRETEND_FD"]), f"{name} {os.getpid()}\n".encode())


def _live() -> None:
    import time

    time.sleep(_LIFE_S)
    os._exit(0)


if __name__ == "__main__":
    _act(json.loads(sys.argv[-1]))
