"""Agents on many hosts, carried by ClusterShell: starts them, writes to them, hands on what they write.

ClusterShell's engine runs in a thread of its own. Each host has its own worker, so that one that ends is started anew
without the others noticing. Where the site's topology file asks for a tree, the hosts that are started first share one
worker: a gateway passes what is written on to the hosts of one worker only, and to all of these (ClusterShell 1.10).
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

from hangdoc.fleet.protocol import LINE_MOST, LINES_MOST
from hangdoc.fleet.transports import Way

STDERR_MOST = 1000  # bytes of a line on stderr that are kept
FANOUT = 64  # agents stay, so as many run at once as there are hosts; never fewer than this
DESCRIPTORS = 8  # of each worker, at most
LEAVE_S = 2.0  # for the agents to end by themselves


@dataclass(frozen=True, slots=True)
class Event:
    """What happened at one host: `started`, a `line` it wrote, it `flooded` us and was cut off, or it `ended`."""

    kind: str
    host: str
    text: bytes = b""  # of a line; why it ended, empty where it was cut off


@dataclass(slots=True)
class Budget:
    """What one host may still write before it is asked again."""

    bytes: int = LINE_MOST
    lines: int = LINES_MOST
    spent: bool = False  # for good: nothing of it is heard any more
    told: bool = False  # that it is

    def renew(self) -> None:
        self.bytes, self.lines = LINE_MOST, LINES_MOST

    def read(self, count: int) -> bool:
        """Whether it might write so many bytes."""
        self.bytes -= count
        self.spent = self.spent or self.bytes < 0
        return not self.spent

    def line(self, count: int, raw: bool) -> bool:
        """Whether it might write a line; `raw`: the bytes of it were counted when they were read."""
        self.lines -= 1
        self.bytes -= 0 if raw else count
        self.spent = self.spent or self.lines < 0 or self.bytes < 0
        return not self.spent


class Carrier:
    """Runs the agent on hosts; to be closed. What they write is read with `next`.

    A host that writes more than an agent would is cut off: its event is `flooded`, and nothing follows but `ended`.
    """

    def __init__(self, way: Way) -> None:
        self._way = way
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._workers: dict[str, Any] = {}  # of the task's thread alone
        self._budgets: dict[str, Budget] = {}  # likewise
        self._sharing: frozenset[str] = frozenset()  # hosts of one worker
        self._ready = Flag()
        self._ending = False
        self._thread = Thread(target=self._run, name="fleet", daemon=True)

    def start(self, hosts: list[str]) -> None:
        """Start the agent on these hosts."""
        if not self._thread.is_alive():
            self._make_room(len(hosts))
            self._thread.start()
            self._ready.wait()
            if self._branches and len(hosts) > 1 and len(set(map(self._way.command, hosts))) == 1:
                self._sharing = frozenset(hosts)
                self._ask(self._start_all, hosts)
                return
        for host in hosts:
            self._ask(self._start, host)

    def shares(self, host: str) -> bool:
        """Whether what is sent to the agent of a host reaches those of other hosts as well."""
        return host in self._sharing

    def send(self, host: str, line: bytes) -> None:
        """Write a line to the agent of a host; it is lost where none runs."""
        self._ask(self._write, host, line)

    def stop(self, host: str) -> None:
        """End the agent of a host, which need not answer."""
        self._ask(self._abort, host)

    def next(self, timeout_s: float) -> Event | None:
        """The next event, or None where there is none for so long."""
        try:
            return self._events.get(timeout=timeout_s) if timeout_s > 0 else self._events.get_nowait()
        except Empty:
            return None

    def close(self) -> None:
        """End every agent: their input ends, and what has not gone after a while is cut off."""
        if self._thread.is_alive():
            self._ask(self._end)
            self._thread.join(LEAVE_S)
            if self._thread.is_alive():
                self._ask(self._cut)
                self._thread.join(LEAVE_S)

    def _make_room(self, hosts: int) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 256 + DESCRIPTORS * hosts
        if soft != resource.RLIM_INFINITY and soft < wanted:
            limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
        self._fanout = max(FANOUT, 2 * hosts)

    # --- in the task's thread ---------------------------------------------------------------------

    def _run(self) -> None:
        self._task: Task = task_self()
        engine: Any = getattr(self._task, "_engine", None)
        if hasattr(engine, "reg_clifds"):
            engine.reg_clifds = _Registered(engine.reg_clifds)
        self._task.set_info("fanout", self._fanout)
        for option, value in self._way.options.items():
            self._task.set_info(option, value)
        for name in ("stdout_msgtree", "stderr_msgtree"):  # else every line ever read is kept
            self._task.set_default(name, False)
        self._branches = self._way.remote and _tree(self._task)
        self._port: Any = self._task.port(_Calls(self._ready))
        with suppress(KeyboardInterrupt):
            self._task.run()

    def _ask(self, function: Callable[..., None], *arguments: Any) -> None:
        if port := self._port:
            port.msg_send((function, arguments))

    def _start(self, host: str) -> None:
        if host in self._workers:
            return
        where = {"nodes": host, "tree": False} if self._way.remote else {"key": host}
        self._budgets[host] = Budget()
        handler = _Worker([host], self._events, self._closed, self._budgets, self._flooded, raw=True)
        worker = self._task.shell(self._way.command(host), handler=handler, stderr=True, **where)
        self._workers[host] = worker
        for client in worker._engine_clients():
            client._read = self._counted(client._read, host)

    def _start_all(self, hosts: Collection[str]) -> None:
        self._budgets |= {host: Budget() for host in hosts}
        handler = _Worker(hosts, self._events, self._closed, self._budgets, self._flooded, raw=False)
        command = self._way.command(next(iter(hosts)))  # the same for all
        worker = self._task.shell(command, nodes=",".join(hosts), handler=handler, stderr=True)
        self._workers.update(dict.fromkeys(hosts, worker))

    def _write(self, host: str, line: bytes) -> None:
        if host in self._workers:
            for one in self._sharing if host in self._sharing else (host,):
                self._budgets[one].renew()
            self._workers[host].write(line)

    def _counted(self, read: Callable[..., bytes], host: str) -> Callable[..., bytes]:
        """ClusterShell keeps a line until it has come to its end, however long that takes, and copies it with each
        piece (Worker/EngineClient.py): it is given whole lines, and an empty one where there is none."""
        budget = self._budgets[host]
        pieces: list[bytes] = []
        said = 0  # bytes of the line on stderr so far

        def counted(sname: str, size: int = 65536) -> bytes:
            nonlocal said
            piece, before = read(sname, size), budget.spent
            if not budget.read(len(piece)):
                if not before:
                    self._ask(self._flooded, host)  # within this call its streams must stay
                pieces.clear()
                return b"\n"
            whole, end, rest = piece.rpartition(b"\n")
            if sname != "stdout":  # what it says last may have no end
                said = len(rest) + (0 if end else said)
                return piece if said <= STDERR_MOST else b"\n"
            if not end:
                pieces.append(piece)
                return b"\n"
            lines = b"".join((*pieces, whole, end))
            pieces[:] = [rest] if rest else []
            return lines

        return counted

    def _flooded(self, host: str) -> None:
        """It wrote too much: cut it off. Of hosts that share a worker only its lines are dropped."""
        budget = self._budgets[host]
        if budget.told:
            return
        budget.told = True
        why = f"the agent wrote more than {LINE_MOST >> 20} MiB or {LINES_MOST} lines at once: it was cut off"
        self._events.put(Event("flooded", host, why.encode()))
        self._abort(host)

    def _abort(self, host: str) -> None:
        if host in self._workers and host not in self._sharing:
            self._workers[host].abort()

    def _end(self) -> None:
        self._ending = True
        for worker in set(self._workers.values()):
            worker.set_write_eof()
        self._leave()

    def _cut(self) -> None:
        for worker in set(self._workers.values()):
            worker.abort()

    def _leave(self) -> None:
        """With the last worker the engine ends, when no port is left either."""
        if self._ending and not self._workers and self._port is not None:
            self._task.remove_port(self._port)
            self._port = None

    def _closed(self, host: str, worker: Any, why: bytes) -> None:
        if self._workers.get(host) is worker:
            del self._workers[host]
            self._sharing -= {host}
            self._events.put(Event("ended", host, why))
        self._leave()


class _Registered(dict[int, Any]):
    """What the engine listens to. It puts all of it into a text for a log that nobody keeps, each time it wakes up: of
    thousands of hosts that was an eighth of what they cost (ClusterShell 1.9 and 1.10, Engine/EPoll.py)."""

    def keys(self) -> Any:
        return ()


def _described(handler: Callable[..., None]) -> Callable[..., None]:
    """ClusterShell inspects the signature of a handler at every event (1.9 and 1.10, Worker/Worker.py)."""
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
    """What happens at the hosts of one worker, as events."""

    def __init__(
        self,
        hosts: Collection[str],
        events: SimpleQueue[Event],
        closed: Callable[[str, Any, bytes], None],
        budgets: Mapping[str, Budget],
        flooded: Callable[[str], None],
        raw: bool,
    ) -> None:
        self._hosts, self._events, self._closed = hosts, events, closed
        self._budgets, self._flooded, self._raw = budgets, flooded, raw
        self._said: dict[str, bytes] = {}  # last line on stderr

    @_described
    def ev_pickup(self, worker: Any, node: str) -> None:
        self._events.put(Event("started", node))

    @_described
    def ev_read(self, worker: Any, node: str, sname: str, msg: bytes) -> None:
        budget = self._budgets[node]
        if not msg:
            return
        if not budget.line(len(msg), self._raw):
            self._flooded(node)
        elif sname == "stdout":
            self._events.put(Event("line", node, msg))
            worker.current_msg = None  # else the last line of every host is kept: of thousands some 30 MiB
        elif msg.strip():
            self._said[node] = msg.strip()[:STDERR_MOST]

    @_described
    def ev_hup(self, worker: Any, node: str, rc: int | None) -> None:
        self._said.setdefault(node, f"it ended with exit code {rc}".encode())
        if len(self._hosts) > 1:  # the worker goes on
            self._closed(node, worker, self._said[node])

    def ev_close(self, worker: Any, timedout: bool) -> None:
        for host in self._hosts:
            self._closed(host, worker, self._said.get(host, b""))


def _tree(task: Task) -> bool:
    """Whether the site has a topology file, and wants it to be followed."""
    for file in reversed(task.TOPOLOGY_CONFIGS):
        if os.path.exists(file):
            task.load_topology(file)
            return task.topology is not None and bool(task.default("auto_tree"))
    return False
