"""What a rank waits for outside itself, from process to process (probe `chain`)."""

from __future__ import annotations

from hangdoc.evidence.record import Record


class Awaited(Record, frozen=True):
    """A thing that a thread waits for, and the processes of this host that can end the wait."""

    # pipe | fifo | unix | tcp | clients: of a listening port | child | lock: on a file | futex: shared | file | other
    way: str
    target: str = ""  # "pipe:[4711]", "10.0.0.7:443", the path of a file
    peers: tuple[int, ...] | None = None  # PIDs; empty: no process of this host; None: unknown, or on another host
    silent_s: float | None = None  # time since a byte moved on the TCP connection; a retransmission is none
    state: str | None = None  # of the TCP connection: established, syn_sent, ...
    unanswered: int = 0  # retransmissions on it in a row without an answer
    accepted: bool = True  # False: the peer listens, and has not accepted the connection
    remote: bool = False  # the other end of the TCP connection is on another host
    filesystem: str | None = None
    inherited: bool = False  # of a lock: forked processes have it with an open file of the one that took it


class Waiter(Record, frozen=True):
    """One sleeping thread, for its process, and what it waits for."""

    pid: int
    tid: int
    command: str  # shortened
    state: str  # of the process, in /proc
    call: str  # kind of its system call (`system.syscalls`); "": it runs, is stopped or has ended
    cpu_s: float = 0.0  # of the process
    moved: int | None = None  # bytes that the process has read and written, caches and pipes included
    age_s: float | None = None
    writes: bool = False
    awaits: tuple[Awaited, ...] = ()  # any of them ends the wait
    locked: bool = False  # every thread waits without a timeout for a lock of this process


class Chain(Record, frozen=True):
    """A rank that waits for something outside itself, and the processes that it waits for, directly or not."""

    threads: tuple[Waiter, ...]  # threads of the rank: its main thread, or those that this one may wait for
    others: tuple[Waiter, ...] = ()  # each process once, nearest first
