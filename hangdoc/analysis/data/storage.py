"""Analysis `storage`: the file, pipe or mount at which a rank, or a helper it waits for, reads or writes.

A thread that has not run at all since it entered a call on a file waits for whoever serves that file. A file's storage
must answer; at a named pipe a writer may still come, unless every process that has it open is stopped or waits itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hangdoc.analysis import Case, Key
from hangdoc.analysis.data.workers import HelperFacts, sure
from hangdoc.analysis.ranks.phases import WAITING
from hangdoc.analysis.ranks.process import process_looks, was_held
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import FileCall, Io, Peer, Stacks

RATE_S = 10.0  # over which bytes per second are counted
LEAST = 1024  # of them: fewer may be what another thread logs
HANDS_OUT = re.compile(r"broadcast|scatter|recv|irecv|bcast")  # others wait to be told what to do: it waits for work
# what a thread does that waits for another thread; any other does not care what its neighbours stand in
FOR_THREADS = re.compile(r"^(wait|_wait_for_tstate_lock|get|join|acquire|result)$")
REMOTE = re.compile(r"nfs|cifs|smb|fuse|lustre|ceph|gpfs|beegfs|gluster|9p|afs|virtiofs|orangefs|pvfs")
TERMINAL = re.compile(r"^/dev/(pts/|tty|null|zero|u?random|nvidia|fuse)")


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """One rank at a file; None: in no call on one, or not seen."""

    call: str | None = None  # read | write | open | stat | list | sync | close | change | fault
    doing: str | None = None  # for people: "read(2)", "a page fault"
    writes: bool | None = None
    path: str | None = None
    target: str | None = None  # for people: the path, or what the pipe leads to
    kind: str | None = None  # file | fifo | pipe | directory | ...
    mount: str | None = None
    filesystem: str | None = None
    pid: int | None = None  # of the thread in the call: the rank's, or of a helper it waits for
    helper: bool | None = None
    process_state: str | None = None  # S or D
    wchan: str | None = None
    blocked_s: float | None = None  # the thread has not run for so long, as far as we watched
    peers: int | None = None  # processes that have the other end open
    peer: str | None = None  # the first of them: "cat (pid 4711)"
    peer_state: str | None = None
    bytes_per_s: float | None = None  # that pass in the call's direction
    share: float | None = None  # of the looks in which it was in such a call
    stuck: bool | None = None
    advancing: bool | None = None


UNSEEN = StorageFacts()


@dataclass(slots=True)
class StorageAnalysis:
    name: str = "storage"
    order: int = 43  # after `helpers`
    rank_facts: type | None = StorageFacts
    job_facts: type | None = None

    def derive(self, case: Case) -> tuple[dict[Key, StorageFacts], None]:
        return {key: _facts(case, key) for key in case.ranks}, None


def _facts(case: Case, key: Key) -> StorageFacts:
    series = [(at, io) for at, io in case.series(key, "io") if isinstance(io, Io)]
    stack: StackFacts = case.rank_facts["stack"][key]
    helpers: HelperFacts = case.rank_facts["helpers"][key]
    in_none = case.ranks[key].alive is False or stack.phase in (*WAITING, "stopped")
    if in_none or not any(io.calls for _, io in series):
        return UNSEEN
    held, woken = _disturbed(case, key)
    series = [(at, io) for at, io in series if at not in held]  # while a debugger holds its threads they are in no call
    if len(series) < 2:
        return UNSEEN
    main, for_threads = _main(case, key), _waits_for_threads(stack)
    mine = [_chosen(io, main, for_threads, helpers) for _, io in series]
    call = mine[-1]
    if call is None:
        return UNSEEN
    same = _same(call, series, woken if call.pid == key[1] else ())  # a helper is not held with it
    blocked_s = same[0][0] - same[-1][0]
    rate = _rate(call, blocked_s, series, mine)
    still = sure(case, blocked_s) and not rate
    return StorageFacts(
        call=call.call,
        doing="a page fault" if call.call == "fault" else f"{call.call}(2)",
        writes=call.writes,
        path=call.path,
        target=_target(call),
        kind=call.kind,
        mount=call.mount,
        filesystem=call.filesystem,
        pid=call.pid,
        helper=call.pid != key[1],
        process_state=call.state,
        wchan=call.wchan,
        blocked_s=blocked_s,
        peers=len(call.peers) if call.peers is not None else None,
        peer=_told(call.peers[0]) if call.peers else None,
        peer_state=call.peers[0].state if call.peers else None,
        bytes_per_s=rate,
        share=sum(one is not None and one.writes == call.writes for one in mine) / len(mine),
        stuck=(still and _nobody_serves(case, key, same)) or None,
        advancing=bool(rate) or not _watched(case, call, series) or None,
    )


def _main(case: Case, key: Key) -> int:
    """Thread id of the thread the rank is judged by."""
    stacks, name = case.record(key, "stacks"), case.rank_facts["stack"][key].thread
    threads = stacks.threads if isinstance(stacks, Stacks) else ()
    return next((stack.tid for stack in threads if stack.name == name), key[1])


def _waits_for_threads(stack: StackFacts) -> bool:
    """The thread the rank is judged by may wait for another one of it."""
    return stack.phase in ("input", "checkpoint", "unknown") or bool(FOR_THREADS.search(stack.op or ""))


def _chosen(io: Io, main: int, for_threads: bool, helpers: HelperFacts) -> FileCall | None:
    """The call that holds the rank up: its own thread's, else that of a helper or of a thread it waits for."""
    # Standard input is where requests come from.
    calls = [c for c in io.calls if c.kind not in ("socket", "other") and c.fd != 0 and not TERMINAL.search(c.path)]
    own = next((call for call in calls if call.tid == main), None)
    if own is not None:
        # A pipe of multiprocessing is the business of `helpers`.
        between = own.kind == "pipe" and helpers.waits and "(subprocess" not in (helpers.frame or "")
        return None if between else own
    of_helpers = {helper.pid for helper in io.helpers}
    files = [call for call in calls if call.kind not in ("pipe", "device")]
    awaited = (call for call in files if helpers.waits and call.pid == helpers.pid)
    threads = (call for call in files if call.pid not in of_helpers and for_threads)
    return next(awaited, next(threads, None))


def _disturbed(case: Case, key: Key) -> tuple[set[float], set[float]]:
    """The instants at which another's debugger held the rank, and those before which it did."""
    seen = process_looks(case, key)
    held = {at for at, record in seen if record.state == "t"}
    return held, {at for (_, before), (at, after) in pairwise(seen) if was_held(before, after)}


def _same(call: FileCall, series: Sequence[tuple[float, Io]], woken: Collection[float]) -> list[tuple[float, FileCall]]:
    """The looks that found the thread in that very call, newest first; who was woken by a debugger is in it again."""
    same = [(series[-1][0], call)]
    for at, io in reversed(series[:-1]):
        since, after = same[-1]
        here = (one for one in io.calls if (one.tid, one.call, one.path) == (call.tid, call.call, call.path))
        before = next((one for one in here if since in woken or one.switches == after.switches), None)
        if before is None:
            break
        same.append((at, before))
    return same


def _rate(
    call: FileCall, blocked_s: float, series: Sequence[tuple[float, Io]], mine: Sequence[FileCall | None]
) -> float | None:
    """Bytes per second in the direction of the call: by the process in it, by its storage, by who reads the pipe.

    Only the time it spent in such calls counts: in between it may talk to the other ranks.
    """
    rounds = [(at, io, one) for (at, io), one in zip(series, mine, strict=True) if series[-1][0] - at <= RATE_S]
    pairs = [(a, b) for a, b in pairwise(rounds) if _alike(call, a[2], b[2])]
    if not pairs:
        return None
    seconds = sum(b[0] - a[0] for a, b in pairs)
    stands = blocked_s >= seconds / 2  # what its process reads and writes, other threads do
    steps = [
        [(b[0] - a[0], *ends) for ends in zip(_counts(call, a[1]), _counts(call, b[1]), strict=True)] for a, b in pairs
    ]
    rate = max(map(_slope, list(zip(*steps, strict=True))[stands:]), default=0.0)
    return rate if rate >= LEAST or call.kind in ("pipe", "fifo") else 0.0


def _slope(steps: Sequence[tuple[float, int | None, int | None]]) -> float:
    """Growth a second, over the steps (seconds, before, after) of which both counts are known."""
    known = [(seconds, after - before) for seconds, before, after in steps if before is not None and after is not None]
    return sum(grown for _, grown in known) / sum(seconds for seconds, _ in known) if known else 0.0


def _alike(call: FileCall, *others: FileCall | None) -> bool:
    """All of them in the same direction at one target, or at files: what passed in between, passed there."""
    same = [one for one in others if one is not None and one.writes == call.writes and one.kind == call.kind]
    return len(same) == len(others) and (call.kind == "file" or len({one.path for one in same}) == 1)


def _counts(call: FileCall, io: Io) -> tuple[int | None, ...]:
    """Bytes so far, of the process, to or from its storage, and at the other end of its pipe."""
    helper = next((helper for helper in io.helpers if helper.pid == call.pid), None)
    own = helper.moved if helper else io.written if call.writes else io.read
    storage = None if helper or call.kind in ("pipe", "fifo") else io.stored if call.writes else io.fetched
    same = next((one for one in io.calls if (one.tid, one.path) == (call.tid, call.path)), None)
    known = [peer.moved for peer in (same.peers or ()) if peer.moved is not None] if same else []
    return own, storage, sum(known) if known else None


def _watched(case: Case, call: FileCall, series: Sequence[tuple[float, Io]]) -> bool:
    """Long enough to say that no byte passes; of a pipe, both its ends."""
    at = [
        instant
        for instant, io in series
        for one in io.calls
        if (one.tid, one.path) == (call.tid, call.path) and (one.kind not in ("fifo", "pipe") or one.peers is not None)
    ]
    return bool(at) and sure(case, at[-1] - at[0])


def _nobody_serves(case: Case, key: Key, same: Sequence[tuple[float, FileCall]]) -> bool:
    """The call cannot return, or nothing shows that it will while other ranks wait for this one."""
    call = same[0][1]
    if call.kind not in ("fifo", "pipe"):
        # A disk of this machine that is slow to write back is at work, though nobody is woken meanwhile.
        return call.call != "sync" or call.state != "D" or bool(REMOTE.match(call.filesystem or ""))
    if call.peers is None:
        return False
    if call.peers and all(peer.state in "TtZX" or peer.pid == call.pid for peer in call.peers):
        return True
    if _active(same):
        return False
    others = [facts for other, facts in case.rank_facts["stack"].items() if other != key and facts.waits]
    return bool(others) and (call.writes or not any(HANDS_OUT.search(facts.op or "") for facts in others))


def _active(same: Sequence[tuple[float, FileCall]]) -> bool:
    """Somebody at the other end has computed since the call was entered."""
    before: dict[int, float] = {}
    for _, call in reversed(same):
        for peer in call.peers or ():
            before.setdefault(peer.pid, peer.cpu_s)
    return any(peer.cpu_s > before[peer.pid] + 0.02 for peer in same[0][1].peers or ())


def _target(call: FileCall) -> str:
    if call.kind != "pipe":
        return call.path
    return f"a pipe {'to' if call.writes else 'from'} {_told(call.peers[0])}" if call.peers else f"a pipe ({call.path})"


def _told(peer: Peer) -> str:
    return f"{peer.command} (pid {peer.pid})"


ANALYSIS = StorageAnalysis()
