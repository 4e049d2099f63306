"""What is known of a job at an instant: the contract between those who observe and those who judge.

Plain frozen records, no behaviour. `None` means "not seen", never zero and never false. Ages and
durations are in seconds, sizes in bytes; instants are the observing host's monotonic clock and are
never compared between hosts.

A probe (`probes/NAME.py`) returns one record a rank or one a host. Records that analysis relies on are
defined here; a new probe may define its own record in its own file, nothing else has to know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# --- who ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """A process that is a training rank, as discovery found it."""

    pid: int  # negative: the rank belongs on this host and its process is gone
    start_ticks: int  # /proc/PID/stat field 22: tells a reused PID from the process we meant
    host: str
    rank: int | None  # global rank; None while it is not known
    local_rank: int | None = None
    world_size: int | None = None
    job: str = "none"  # torchelastic run id, Slurm or MPI job id, or master address:port; "none" if silent
    launcher: str | None = None  # torchrun | mpi | slurm | spawn | plain
    launcher_pid: int | None = None
    children: tuple[int, ...] = ()  # helpers that belong to this rank: dataloader and compile workers
    master: str | None = None  # address:port where the job's ranks meet (their store): equal on every host of a job


@dataclass(frozen=True, slots=True)
class Unseen:
    """What a probe could not see, and why: said to the user, and it lowers the confidence."""

    probe: str
    why: str  # one sentence with the remedy
    rank: int | None = None  # None: the whole host
    pid: int | None = None
    host: str | None = None


# --- probe "cpu" ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ThreadCpu:
    """One thread of a rank, from /proc/PID/task/TID."""

    tid: int
    comm: str
    state: str  # R S D T t Z X I
    cpu_s: float  # user + system time since it started
    voluntary: int | None = None  # context switches
    involuntary: int | None = None
    wchan: str | None = None  # kernel function it sleeps in
    syscall: int | None = None  # number of the system call it is in; -1 outside one
    syscall_fd: int | None = None  # first argument of read/write-like calls
    run_delay_s: float | None = None  # time spent runnable but waiting for a core (schedstat)


@dataclass(frozen=True, slots=True)
class Process:
    """A rank's process (record of probe `cpu`)."""

    pid: int
    ppid: int
    uid: int
    state: str  # of the main thread
    command: tuple[str, ...]
    executable: str | None
    cwd: str | None
    age_s: float
    cpu_s: float
    rss_bytes: int
    threads: tuple[ThreadCpu, ...]
    tracer_pid: int = 0  # who ptraces it
    tracer: str | None = None  # its command name
    affinity: tuple[int, ...] | None = None  # cores it may run on
    nice: int | None = None
    children: tuple[ChildProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class ChildProcess:
    """A helper process of a rank: dataloader worker, tokeniser pool, compiler."""

    pid: int
    comm: str
    command: tuple[str, ...]
    state: str
    cpu_s: float
    wchan: str | None = None


# --- probes "stacks", "variables", "tensors" and "source" -----------------------------------------


@dataclass(frozen=True, slots=True)
class Tensor:
    """Shape, type and device of a tensor, read from outside."""

    shape: tuple[int, ...]
    dtype: str  # torch name without prefix: float32, bfloat16, int64, ...
    device: str  # cpu, cuda, ...


@dataclass(frozen=True, slots=True)
class Variable:
    """A local variable of a frame or a global of the training script."""

    name: str
    text: str  # shortened and redacted representation
    argument: bool = False
    number: float | None = None  # value of an int, bool or float
    length: int | None = None  # of a list, tuple, dict, string or array, where readable
    kind: str | None = None  # int float bool str none list tuple dict tensor object
    address: int | None = None  # of the object, for other probes of the same process
    tensor: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    """A `for` or `while` statement that encloses a line of source."""

    first: int  # line of the statement itself
    last: int  # last line of its body (an `else` part is not in it)
    header: str  # its source text, shortened
    counters: tuple[str, ...]  # its targets, and names its body increments


@dataclass(frozen=True, slots=True)
class Branch:
    """An arm of an `if` or `try` statement that encloses a line."""

    line: int  # line of the statement
    arm: str  # body | else | except | finally
    test: str  # source text of the condition, shortened; "" where there is none
    leaves: bool = False  # the arm ends in return, continue, break or raise: what follows is the other arm


@dataclass(frozen=True, slots=True)
class Handed:
    """A call in a function that hands a variable of it to a collective of the whole job."""

    op: str  # all_reduce | broadcast | reduce
    name: str  # a variable that the function gives a value to in one place only
    line: int


@dataclass(frozen=True, slots=True)
class Place:
    """What the source says about the line a frame stands on."""

    text: str  # the statement's first line, stripped, shortened and redacted
    loops: tuple[Loop, ...]  # outermost first, within the function
    branches: tuple[Branch, ...]  # outermost first, within the function
    calls: tuple[str, ...]  # dotted names called in this statement, e.g. ("dist.barrier",)
    function_first: int  # line of the enclosing def; 0 for a module
    function_last: int
    passed: tuple[Loop, ...] = ()  # loops of the same function that ended before this line
    around: tuple[str, ...] = ()  # dotted names called anywhere in the enclosing function
    hands: tuple[Handed, ...] = ()  # what the enclosing function hands to collectives


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python (or native) frame."""

    function: str
    file: str  # full path as the interpreter knows it; the shared object for a native frame
    line: int | None
    short: str = ""  # py-spy's shortened file name, for people
    native: bool = False
    variables: tuple[Variable, ...] | None = None  # None: not asked or not readable


@dataclass(frozen=True, slots=True)
class Stack:
    """The stack of one thread, innermost frame first."""

    tid: int
    name: str | None  # Python's thread name
    frames: tuple[Frame, ...]
    holds_gil: bool = False
    active: bool = False  # py-spy: on a CPU when looked at


@dataclass(frozen=True, slots=True)
class Source:
    """What the source says about the lines on a rank's stacks (record of probe `source`)."""

    places: Mapping[str, Place]  # by "file:line" as the frames name them


@dataclass(frozen=True, slots=True)
class Stacks:
    """All Python threads of a rank (record of probe `stacks`)."""

    threads: tuple[Stack, ...]
    native: bool = False  # native frames are interleaved
    python: str | None = None  # interpreter version, where known
    globals: tuple[Variable, ...] | None = None  # of the training script's module (probe `variables`)
    children: tuple[tuple[int, tuple[Stack, ...]], ...] = ()  # helper PID -> its threads


# --- probe "groups" -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group of torch.distributed that a rank belongs to."""

    address: int  # of the ProcessGroup object in this rank: what the variables of its frames point to
    name: str  # as torch names it, the same on every member: "0", "1", or a hash
    ranks: tuple[int, ...]  # global ranks of the members, by their rank in the group
    default: bool = False  # the group of the whole job
    backend: str | None = None  # gloo, nccl, cpu:gloo,cuda:nccl, ...


@dataclass(frozen=True, slots=True)
class Groups:
    """The process groups of a rank, and who it says it is (record of probe `groups`)."""

    groups: tuple[ProcessGroup, ...] = ()  # in order of creation; empty before init_process_group
    rank: int | None = None  # global rank, from its groups; else from its own environment as it is now
    world_size: int | None = None
    local_rank: int | None = None  # from its environment as it is now
    master: str | None = None  # address:port, likewise


# --- probes "sockets" and "nics" ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connection:
    """A TCP socket of a rank with the kernel's tcp_info (record of probe `sockets`, one of several)."""

    local: str
    local_port: int
    remote: str
    remote_port: int
    state: str  # established, syn_sent, listen, close_wait, ...
    receive_queue: int = 0  # bytes the rank has not read
    send_queue: int = 0  # bytes not acknowledged by the peer
    unacked: int | None = None  # segments in flight
    retransmits: int | None = None  # of the segment now at the head, in a row
    backoff: int | None = None
    total_retransmits: int | None = None
    last_send_s: float | None = None  # tcpi_last_data_sent (a retransmission counts); None before the first byte
    last_receive_s: float | None = None  # tcpi_last_data_recv; None before the first byte
    last_ack_s: float | None = None  # tcpi_last_ack_recv
    bytes_sent: int | None = None
    bytes_acked: int | None = None
    bytes_received: int | None = None
    bytes_retransmitted: int | None = None
    segments_out: int | None = None
    rtt_s: float | None = None
    pmtu: int | None = None
    busy_s: float | None = None  # time with data to send (tcpi_busy_time)
    receiver_limited_s: float | None = None  # tcpi_rwnd_limited
    delivery_rate: int | None = None  # bytes per second
    timer: str | None = None  # on | keepalive | timewait | persist | off
    uid: int | None = None
    inode: int | None = None
    interface: str | None = None  # that holds the local address
    peer_pid: int | None = None  # the other end's rank, where it was seen by the same agent
    probes: int | None = None  # window or keepalive probes unanswered in a row (tcpi_probes)
    not_sent: int | None = None  # part of send_queue that was never sent (tcpi_notsent_bytes)
    send_window: int | None = None  # bytes the peer will take (tcpi_snd_wnd, Linux >= 5.4); 0: it does not read


@dataclass(frozen=True, slots=True)
class Sockets:
    connections: tuple[Connection, ...]
    namespace: int | None = None  # inode of the network namespace


@dataclass(frozen=True, slots=True)
class Interface:
    name: str
    addresses: tuple[str, ...]
    kind: str  # ethernet | loopback | bridge | veth | wireless | infiniband | tunnel | other
    up: bool  # administratively
    carrier: bool | None  # operationally: a link is there
    mtu: int
    speed_mbit: int | None = None
    rx_errors: int | None = None
    tx_errors: int | None = None
    rx_bytes: int | None = None
    tx_bytes: int | None = None
    default_route: bool = False


@dataclass(frozen=True, slots=True)
class Interfaces:
    """Interfaces of a rank's network namespace (record of probe `nics`)."""

    interfaces: tuple[Interface, ...]
    namespace: int | None = None
    hostname_addresses: tuple[str, ...] | None = None  # what the host's own name resolves to


# --- probes "environ" and "files" -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Environ:
    """Environment variables that matter, through an allow-list: never a secret."""

    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class OpenFile:
    fd: int
    path: str
    kind: str  # file | fifo | directory | device | pipe | socket | other
    position: int | None = None
    size: int | None = None
    mode: str | None = None  # r | w | rw
    mount: str | None = None  # mount point
    filesystem: str | None = None  # ext4, nfs4, fuse.sshfs, ...


@dataclass(frozen=True, slots=True)
class FileLock:
    """A lock on a file one of the ranks has open, from /proc/locks."""

    path: str | None
    inode: int
    kind: str  # flock | posix | ofd
    holder_pid: int | None  # None: nobody living
    waiting_pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Files:
    open: tuple[OpenFile, ...]
    locks: tuple[FileLock, ...] = ()


# --- the host -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Host:
    """What does not change while we watch (record of host probe `host`)."""

    name: str
    boot_id: str | None
    kernel: str
    cores: int
    cpu_model: str | None
    cpu_flags: frozenset[str] | None  # None: not readable
    memory_bytes: int | None = None


# --- together -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """One rank at one instant: the records of the probes that looked, by probe name."""

    target: Target
    alive: bool | None  # False: the process is gone or a zombie
    records: Mapping[str, Any] = field(default_factory=dict)
    exit: str | None = None  # "signal 9", "exit code 1", where known


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One host at one instant."""

    host: str
    at_s: float  # monotonic clock of this host
    time: str  # ISO-8601 wall clock of this host, for people
    ranks: tuple[RankEvidence, ...]
    records: Mapping[str, Any] = field(default_factory=dict)  # of host probes
    unseen: tuple[Unseen, ...] = ()
    tier: str = "pulse"  # pulse | look | examine
