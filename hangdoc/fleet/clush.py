"""Agents on many hosts, over ClusterShell: starts them, sends them commands, passes on their output.

ClusterShell's engine runs in a thread of its own. Each host has its own worker, so one agent can be restarted alone. If
the site's topology file asks for a tree, the hosts started first share one worker: a gateway only passes input to all
hosts of one worker (ClusterShell 1.10).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from inspect import signature
from queue import Empty, SimpleQueue
from threading import Event as Flag
from threading import Thread
from typing import Any

from ClusterShell.Event import EventHandler
from ClusterShell.Task import Task, task_self

from hangdoc.fleet.protocol import MAX_LINE, MAX_LINES
from hangdoc.fleet.transports import Transport

MAX_STDERR = 1000  # bytes kept of a line on stderr
FANOUT = 64  # at least; agents keep running, so the fanout must cover all hosts
DESCRIPTORS = 8  # per worker, at most
LEAVE_S = 2.0  # for agents to end by themselves


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """An event at one host: it `started`, wrote a `line`, `flooded` the collector and was cut off, or `ended`."""

    kind: str
    host: str
    text: bytes = b""  # the line; or why it ended, empty if it was cut off


@dataclass(slots=True)
class Budget:
    """How much one host may still write before the next question."""

    bytes: int = MAX_LINE
    lines: int = MAX_LINES
    spent: bool = False  # for good: further output is ignored
    reported: bool = False  # a `flooded` event was sent

    def renew(self) -> None:
        self.bytes, self.lines = MAX_LINE, MAX_LINES

    def read(self, count: int) -> bool:
        """Count bytes read; False if the budget is spent."""
        self.bytes -= count
        self.spent = self.spent or self.bytes < 0
        return not self.spent

    def line(self, count: int, raw: bool) -> bool:
        """Count a line; False if the budget is spent. `raw`: its bytes were counted when read."""
        self.lines -= 1
        self.bytes -= 0 if raw else count
        self.spent = self.spent or self.lines < 0 or self.bytes < 0
        return not self.spent


class AgentPool:
    """Runs the agent on hosts. Read events with `next`; close it at the end.

    A host that writes more than an agent ever would is cut off: its event is `flooded`, and only `ended` follows.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._events: SimpleQueue[AgentEvent] = SimpleQueue()
        self._workers: dict[str, Any] = {}  # only used in the task's thread
        self._budgets: dict[str, Budget] = {}  # only used in the task's thread
        self._sharing: frozenset[str] = frozenset()  # hosts on one shared worker
        self._ready = Flag()
        self._ending = False
        self._thread = Thread(target=self._run, name="fleet", daemon=True)

    def start(self, hosts: list[str]) -> None:
        """Start the agent on these hosts."""
        if not self._thread.is_alive():
            self._make_room(len(hosts))
            self._thread.start()
            self._ready.wait()
            if self._branches and len(hosts) > 1 and len(set(map(self._transport.command, hosts))) == 1:
                self._sharing = frozenset(hosts)
                self._run_in_task(self._start_all, hosts)
                return
        for host in hosts:
            self._run_in_task(self._start, host)

    def shares(self, host: str) -> bool:
        """True if input for the agent of this host also reaches other hosts."""
        return host in self._sharing

    def send(self, host: str, line: bytes) -> None:
        """Send a line to the agent of a host; dropped if none runs."""
        self._run_in_task(self._write, host, line)

    def stop(self, host: str) -> None:
        """End the agent of a host without its cooperation."""
        self._run_in_task(self._abort, host)

    def next(self, timeout_s: float) -> AgentEvent | None:
        """The next event; None after the timeout."""
        try:
            return self._events.get(timeout=timeout_s) if timeout_s > 0 else self._events.get_nowait()
        except Empty:
            return None

    def close(self) -> None:
        """End every agent: close its input, and after a while kill what is left."""
        if self._thread.is_alive():
            self._run_in_task(self._end)
            self._thread.join(LEAVE_S)
            if self._thread.is_alive():
                self._run_in_task(self._abort_all)
                self._thread.join(LEAVE_S)

    def _make_room(self, hosts: int) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 256 + DESCRIPTORS * hosts
        if soft != resource.RLIM_INFINITY and soft < wanted:
            limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
        self._fanout = max(FANOUT, 2 * hosts)

    # --- in the task's thread ------------------------------------------------------------------------

    def _run(self) -> None:
        self._task: Task = task_self()
        engine: Any = getattr(self._task, "_engine", None)
        if hasattr(engine, "reg_clifds"):
            engine.reg_clifds = _Registered(engine.reg_clifds)
        self._task.set_info("fanout", self._fanout)
        for option, value in self._transport.options.items():
            self._task.set_info(option, value)
        for name in ("stdout_msgtree", "stderr_msgtree"):  # otherwise every line is kept
            self._task.set_default(name, False)
        self._branches = self._transport.remote and _tree(self._task)
        self._port: Any = self._task.port(_Calls(self._ready))
        with suppress(KeyboardInterrupt):
            self._task.run()

    def _run_in_task(self, function: Callable[..., None], *arguments: Any) -> None:
        if port := self._port:
            port.msg_send((function, arguments))

    def _start(self, host: str) -> None:
        if host in self._workers:
            return
        where = {"nodes": host, "tree": False} if self._transport.remote else {"key": host}
        self._budgets[host] = Budget()
        handler = _Worker([host], self._events, self._closed, self._budgets, self._flooded, raw=True)
        worker = self._task.shell(self._transport.command(host), handler=handler, stderr=True, **where)
        self._workers[host] = worker
        for client in worker._engine_clients():
            client._read = self._counted(client._read, host)

    def _start_all(self, hosts: Collection[str]) -> None:
        self._budgets |= {host: Budget() for host in hosts}
        handler = _Worker(hosts, self._events, self._closed, self._budgets, self._flooded, raw=False)
        command = self._transport.command(next(iter(hosts)))  # the same for all
        worker = self._task.shell(command, nodes=",".join(hosts), handler=handler, stderr=True)
        self._workers.update(dict.fromkeys(hosts, worker))

    def _write(self, host: str, line: bytes) -> None:
        if host in self._workers:
            for one in self._sharing if host in self._sharing else (host,):
                self._budgets[one].renew()
            self._workers[host].write(line)

    def _counted(self, read: Callable[..., bytes], host: str) -> Callable[..., bytes]:
        """Limits what is read from one host.

        ClusterShell buffers an incomplete line without limit and copies it with each piece (Worker/EngineClient.py).
        Give it whole lines only, and an empty line otherwise.
        """
        budget = self._budgets[host]
        pieces: list[bytes] = []
        stderr_bytes = 0  # bytes of the current line on stderr

        def counted(sname: str, size: int = 65536) -> bytes:
            nonlocal stderr_bytes
            piece, before = read(sname, size), budget.spent
            if not budget.read(len(piece)):
                if not before:
                    self._run_in_task(self._flooded, host)  # later: within this call its streams must stay
                pieces.clear()
                return b"\n"
            whole, end, rest = piece.rpartition(b"\n")
            if sname != "stdout":  # the last line on stderr may have no newline
                stderr_bytes = len(rest) + (0 if end else stderr_bytes)
                return piece if stderr_bytes <= MAX_STDERR else b"\n"
            if not end:
                pieces.append(piece)
                return b"\n"
            lines = b"".join((*pieces, whole, end))
            pieces[:] = [rest] if rest else []
            return lines

        return counted

    def _flooded(self, host: str) -> None:
        """Cut off a host that wrote too much. On a shared worker, only its lines are dropped."""
        budget = self._budgets[host]
        if budget.reported:
            return
        budget.reported = True
        why = f"the agent wrote more than {MAX_LINE >> 20} MiB or {MAX_LINES} lines for one question: it was cut off"
        self._events.put(AgentEvent("flooded", host, why.encode()))
        self._abort(host)

    def _abort(self, host: str) -> None:
        if host in self._workers and host not in self._sharing:
            self._workers[host].abort()

    def _end(self) -> None:
        self._ending = True
        for worker in set(self._workers.values()):
            worker.set_write_eof()
        self._leave()

    def _abort_all(self) -> None:
        for worker in set(self._workers.values()):
            worker.abort()

    def _leave(self) -> None:
        """The engine ends with its last worker, once it has no port either."""
        if self._ending and not self._workers and self._port is not None:
            self._task.remove_port(self._port)
            self._port = None

    def _closed(self, host: str, worker: Any, why: bytes) -> None:
        if self._workers.get(host) is worker:
            del self._workers[host]
            self._sharing -= {host}
            self._events.put(AgentEvent("ended", host, why))
        self._leave()


class _Registered(dict[int, Any]):
    """The engine's registered clients. On each wake-up the engine formats all of them for a log message that nobody
    keeps; with thousands of hosts that took an eighth of the time (ClusterShell 1.9 and 1.10, Engine/EPoll.py).
    """

    def keys(self) -> Any:
        return ()


def _described(handler: Callable[..., None]) -> Callable[..., None]:
    """ClusterShell inspects the signature of a handler at every event (1.9 and 1.10, Worker/Worker.py): cache it."""
    handler.__signature__ = signature(handler)  # type: ignore[attr-defined]
    return handler


class _Calls(EventHandler):  # type: ignore[misc]  # ClusterShell has no types
    """Calls functions in the task's thread."""

    def __init__(self, ready: Flag) -> None:
        self._ready = ready

    def ev_port_start(self, port: Any) -> None:
        self._ready.set()

    def ev_msg(self, port: Any, message: tuple[Callable[..., None], tuple[Any, ...]]) -> None:
        function, arguments = message
        function(*arguments)


class _Worker(EventHandler):  # type: ignore[misc]
    """Turns the callbacks of one worker into events."""

    def __init__(
        self,
        hosts: Collection[str],
        events: SimpleQueue[AgentEvent],
        closed: Callable[[str, Any, bytes], None],
        budgets: Mapping[str, Budget],
        flooded: Callable[[str], None],
        raw: bool,
    ) -> None:
        self._hosts, self._events, self._closed = hosts, events, closed
        self._budgets, self._flooded, self._raw = budgets, flooded, raw
        self._last_error: dict[str, bytes] = {}  # last line on stderr

    @_described
    def ev_pickup(self, worker: Any, node: str) -> None:
        self._events.put(AgentEvent("started", node))

    @_described
    def ev_read(self, worker: Any, node: str, sname: str, msg: bytes) -> None:
        budget = self._budgets[node]
        if not msg:
            return
        if not budget.line(len(msg), self._raw):
            self._flooded(node)
        elif sname == "stdout":
            self._events.put(AgentEvent("line", node, msg))
            worker.current_msg = None  # otherwise the last line of every host is kept: 30 MiB for thousands
        elif msg.strip():
            self._last_error[node] = msg.strip()[:MAX_STDERR]

    @_described
    def ev_hup(self, worker: Any, node: str, rc: int | None) -> None:
        self._last_error.setdefault(node, f"it ended with exit code {rc}".encode())
        if len(self._hosts) > 1:  # the worker continues
            self._closed(node, worker, self._last_error[node])

    def ev_close(self, worker: Any, timedout: bool) -> None:
        for host in self._hosts:
            self._closed(host, worker, self._last_error.get(host, b""))


def _tree(task: Task) -> bool:
    """True if the site has a topology file and wants it used."""
    for file in reversed(task.TOPOLOGY_CONFIGS):
        if os.path.exists(file):
            task.load_topology(file)
            return task.topology is not None and bool(task.default("auto_tree"))
    return False
