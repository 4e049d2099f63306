"""Analysis `storage`: the file, pipe or mount that a rank, or a helper it waits for, reads or writes.

A thread that has not run since it entered a file system call waits for the file's server. On a file, that is its
storage. On a named pipe a writer may still come, unless every process that has it open is stopped or waits itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hangdoc.analysis import Case, Detector, Key
from hangdoc.analysis.data.workers import WorkerFacts, is_stall
from hangdoc.analysis.ranks.judged_thread import judged_thread
from hangdoc.analysis.ranks.phases import WAITING
from hangdoc.analysis.ranks.process import process_looks, was_held
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.analysis.thresholds import MIN_RATE, PIPE_CPU_S, RATE_S
from hangdoc.evidence import FileCall, Io, Peer

# Operations in which peers wait for this rank to hand out work: then it may itself be waiting for work on a pipe.
HANDS_OUT = re.compile(r"broadcast|scatter|recv|irecv|bcast")
# Operations in which a thread waits for another thread; only then do its process's other threads matter.
FOR_THREADS = re.compile(r"^(wait|_wait_for_tstate_lock|get|join|acquire|result)$")
REMOTE = re.compile(r"nfs|cifs|smb|fuse|lustre|ceph|gpfs|beegfs|gluster|9p|afs|virtiofs|orangefs|pvfs")
TERMINAL = re.compile(r"^/dev/(pts/|tty|console$|hvc|null|zero|u?random|nvidia|fuse)")


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """The file system call that holds up one rank. None: the rank is in no such call, or not seen."""

    call: str | None = None  # read | write | open | stat | list | sync | close | change | fault
    doing: str | None = None  # the call as shown to people: "read(2)", "a page fault"
    writes: bool | None = None  # the call writes
    path: str | None = None
    target: str | None = None  # the target as shown to people: the path, or "a pipe to cat (pid 4711)"
    stream: str | None = None  # the rank's own "stdout" or "stderr", if that is a pipe
    kind: str | None = None  # file | fifo | pipe | directory | ...
    mount: str | None = None  # mount point of the path
    filesystem: str | None = None  # its type: "nfs4"
    pid: int | None = None  # process in the call: the rank, or a helper that it waits for
    helper: bool | None = None  # the process is a helper
    process_state: str | None = None  # state in /proc of the thread in the call: S or D
    wchan: str | None = None  # kernel function that it sleeps in
    blocked_s: float | None = None  # seconds for which the thread has not run, within the window
    peers: int | None = None  # processes that have the other end of the pipe open
    peer: str | None = None  # the first of them: "cat (pid 4711)"
    peer_state: str | None = None  # its state in /proc
    bytes_per_s: float | None = None  # transfer rate in the call's direction; None: unknown
    share: float | None = None  # share of the looks that found it asleep in a call of the same direction, 0..1
    stuck: bool | None = None  # the call will not return by itself
    advancing: bool | None = None  # bytes pass, or the call was not watched for long enough


UNSEEN = StorageFacts()
_STREAMS: Mapping[int | None, str] = {1: "stdout", 2: "stderr"}  # by file descriptor


class StorageDetector(Detector[StorageFacts, None]):
    rank_facts = StorageFacts
    seen_by = ("io", "aftermath")

    def derive(self, case: Case) -> tuple[dict[Key, StorageFacts], None]:
        return {key: _facts(case, key) for key in case.ranks}, None


def _facts(case: Case, key: Key) -> StorageFacts:
    series = [(at, io) for at, io in case.series(key, "io") if isinstance(io, Io)]
    stack = case.facts(StackFacts)[key]
    helpers = case.facts(WorkerFacts)[key]
    in_none = case.ranks[key].alive is False or stack.phase in (*WAITING, "stopped")
    if in_none or not any(io.calls for _, io in series):
        return UNSEEN
    held, woken = _debugger_times(case, key)
    series = [(at, io) for at, io in series if at not in held]  # threads held by a debugger are in no call
    if len(series) < 2:
        return UNSEEN
    main, for_threads = _main(case, key), _waits_for_threads(stack)
    calls = [_blocking_call(io, main, for_threads, helpers) for _, io in series]
    call = calls[-1]
    if call is None:
        return UNSEEN
    same = _same_call(call, series, woken if call.pid == key[1] else ())  # the debugger does not hold the helpers
    blocked_s = same[0][0] - same[-1][0]
    rate = _rate(call, blocked_s, series, calls)
    still = is_stall(case, blocked_s) and not rate
    return StorageFacts(
        call=call.call,
        doing="a page fault" if call.call == "fault" else f"{call.call}(2)",
        writes=call.writes,
        path=call.path,
        target=_target(call),
        stream=_stream(call) if call.pid == key[1] else None,
        kind=call.kind,
        mount=call.mount,
        filesystem=call.filesystem,
        pid=call.pid,
        helper=call.pid != key[1],
        process_state=call.state,
        wchan=call.wchan,
        blocked_s=blocked_s,
        peers=len(call.peers) if call.peers is not None else None,
        peer=_format_peer(call.peers[0]) if call.peers else None,
        peer_state=call.peers[0].state if call.peers else None,
        bytes_per_s=rate,
        share=sum(seen is not None and seen.writes == call.writes for seen in calls) / len(calls),
        stuck=(still and _cannot_return(case, key, same)) or None,
        advancing=bool(rate) or not _watched_enough(case, call, series) or None,
    )


def _main(case: Case, key: Key) -> int:
    """Thread ID of the thread that stands for the rank."""
    thread = judged_thread(case, key)
    return thread.stack.tid if thread else key[1]


def _waits_for_threads(stack: StackFacts) -> bool:
    """The thread that stands for the rank may wait for another thread of its process."""
    return stack.phase in ("input", "checkpoint", "unknown") or bool(FOR_THREADS.search(stack.op or ""))


def _blocking_call(io: Io, main: int, for_threads: bool, helpers: WorkerFacts) -> FileCall | None:
    """The call that holds up the rank: its main thread's, else a helper's, else another thread's that it waits for."""
    # Reading standard input is waiting for requests.
    calls = [c for c in io.calls if c.kind not in ("socket", "other") and c.fd != 0 and not TERMINAL.search(c.path)]
    own = next((call for call in calls if call.tid == main), None)
    if own is not None:
        # Pipes to multiprocessing workers are covered by `helpers`.
        between = own.kind == "pipe" and helpers.waits and "(subprocess" not in (helpers.frame or "")
        return None if between else own
    of_helpers = {helper.pid for helper in io.helpers}
    files = [call for call in calls if call.kind not in ("pipe", "device")]
    awaited = (call for call in files if helpers.waits and call.pid == helpers.pid)
    threads = (call for call in files if call.pid not in of_helpers and for_threads)
    return next(awaited, next(threads, None))


def _debugger_times(case: Case, key: Key) -> tuple[set[float], set[float]]:
    """Instants of the looks at which a debugger held the rank, and of the looks before which it had held it."""
    seen = process_looks(case, key)
    held = {at for at, record in seen if record.state == "t"}
    return held, {at for (_, before), (at, after) in pairwise(seen) if was_held(before, after)}


def _same_call(
    call: FileCall, series: Sequence[tuple[float, Io]], woken: Collection[float]
) -> list[tuple[float, FileCall]]:
    """Looks that found the thread in this same call, newest first.

    `woken`: instants of looks before which a debugger briefly resumed the thread; it is still in the same call.
    """
    same = [(series[-1][0], call)]
    for at, io in reversed(series[:-1]):
        since, after = same[-1]
        matching = (seen for seen in io.calls if (seen.tid, seen.call, seen.path) == (call.tid, call.call, call.path))
        before = next((seen for seen in matching if since in woken or seen.switches == after.switches), None)
        if before is None:
            break
        same.append((at, before))
    return same


def _rate(
    call: FileCall, blocked_s: float, series: Sequence[tuple[float, Io]], calls: Sequence[FileCall | None]
) -> float | None:
    """Bytes per second in the call's direction: the highest count of its process, its storage and its pipe's peers.

    Only the time spent in such calls counts: in between, the process may communicate with other ranks.
    """
    rounds = [(at, io, seen) for (at, io), seen in zip(series, calls, strict=True) if series[-1][0] - at <= RATE_S]
    pairs = [(a, b) for a, b in pairwise(rounds) if _same_transfer(call, a[2], b[2])]
    if not pairs:
        return None
    seconds = sum(b[0] - a[0] for a, b in pairs)
    blocked = blocked_s >= seconds / 2  # then other threads account for what the process reads and writes
    steps = [
        [(b[0] - a[0], *ends) for ends in zip(_counts(call, a[1]), _counts(call, b[1]), strict=True)] for a, b in pairs
    ]
    rate = max(map(_growth_per_s, list(zip(*steps, strict=True))[blocked:]), default=0.0)
    return rate if rate >= MIN_RATE or call.kind in ("pipe", "fifo") else 0.0


def _growth_per_s(steps: Sequence[tuple[float, int | None, int | None]]) -> float:
    """Growth per second over the steps (seconds, count before, count after) with both counts known."""
    known = [(seconds, after - before) for seconds, before, after in steps if before is not None and after is not None]
    return sum(grown for _, grown in known) / sum(seconds for seconds, _ in known) if known else 0.0


def _same_transfer(call: FileCall, *others: FileCall | None) -> bool:
    """All calls have the same direction and one target, or are on files: bytes in between passed through them."""
    same = [other for other in others if other is not None and (other.writes, other.kind) == (call.writes, call.kind)]
    return len(same) == len(others) and (call.kind == "file" or len({other.path for other in same}) == 1)


def _counts(call: FileCall, io: Io) -> tuple[int | None, ...]:
    """Bytes so far: by the process, to or from its storage, and at the other end of its pipe. None: unknown."""
    helper = next((helper for helper in io.helpers if helper.pid == call.pid), None)
    own = helper.moved if helper else io.written if call.writes else io.read
    storage = None if helper or call.kind in ("pipe", "fifo") else io.stored if call.writes else io.fetched
    same = next((seen for seen in io.calls if (seen.tid, seen.path) == (call.tid, call.path)), None)
    known = [peer.moved for peer in (same.peers or ()) if peer.moved is not None] if same else []
    return own, storage, sum(known) if known else None


def _watched_enough(case: Case, call: FileCall, series: Sequence[tuple[float, Io]]) -> bool:
    """The call (on a pipe, both ends) was watched for long enough to know that no byte passes."""
    instants = [
        at
        for at, io in series
        for seen in io.calls
        if (seen.tid, seen.path) == (call.tid, call.path)
        and (seen.kind not in ("fifo", "pipe") or seen.peers is not None)
    ]
    return bool(instants) and is_stall(case, instants[-1] - instants[0])


def _cannot_return(case: Case, key: Key, same: Sequence[tuple[float, FileCall]]) -> bool:
    """The call cannot return, or nothing shows that it will while other ranks wait for this one."""
    call = same[0][1]
    if call.kind not in ("fifo", "pipe"):
        # A slow local disk that writes back is working, although it wakes no thread meanwhile.
        return call.call != "sync" or call.state != "D" or bool(REMOTE.match(call.filesystem or ""))
    if call.peers is None:
        return False
    if call.peers and all(peer.state in "TtZX" or peer.pid == call.pid for peer in call.peers):
        return True
    if _peer_computed(same):
        return False
    others = [facts for other, facts in case.facts(StackFacts).items() if other != key and facts.waits]
    return bool(others) and (call.writes or not any(HANDS_OUT.search(facts.op or "") for facts in others))


def _peer_computed(same: Sequence[tuple[float, FileCall]]) -> bool:
    """A process at the other end has used CPU time since the call began."""
    before: dict[int, float] = {}
    for _, call in reversed(same):
        for peer in call.peers or ():
            before.setdefault(peer.pid, peer.cpu_s)
    return any(peer.cpu_s > before[peer.pid] + PIPE_CPU_S for peer in same[0][1].peers or ())


def _stream(call: FileCall) -> str | None:
    return _STREAMS.get(call.fd) if call.writes and call.kind in ("pipe", "fifo") else None


def _target(call: FileCall) -> str:
    if call.kind != "pipe":
        return call.path
    if not call.peers:
        return f"a pipe ({call.path})"
    return f"a pipe {'to' if call.writes else 'from'} {_format_peer(call.peers[0])}"


def _format_peer(peer: Peer) -> str:
    return f"{peer.command} (pid {peer.pid})"


ANALYSIS = StorageDetector()
