"""The incidents of the watched jobs, as they happen: a black box for the evidence, and a record of what is known.

From the first suspicion on, before a stall is old enough to be reported, the history of the job and each further round
go to disk. A suspicion that passes leaves nothing behind. If the disk is full or read-only, an incident lives on in
memory and its listeners hear of it all the same.
"""

from __future__ import annotations

import os
import platform
import pwd
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from hangdoc.analysis import Key
from hangdoc.analysis.facts import Facts
from hangdoc.evidence import Environ, Process, Snapshot
from hangdoc.formatting import seconds
from hangdoc.incident.outcome import outcome_of
from hangdoc.incident.record import MAX_PROCESSES, MAX_VERDICTS, IncidentRecord, Outcome
from hangdoc.incident.recurrence import recurrence
from hangdoc.incident.store import IncidentStore, parse_time
from hangdoc.recording.recorder import FULL, MAX_FREED
from hangdoc.recording.verdict_json import to_json
from hangdoc.verdict import CONFIDENCES, Verdict

WRONG = frozenset({"stalled", "failed", "slow", "diverging"})  # verdicts that make an incident
PASSED_S = 15.0  # a suspicion is over after so long without one: a rank moves for a moment before it dies
MAX_PASSED_S = 60.0  # longest pause that is learnt as one of the job's own
RECENT_S = 60.0  # a rank that died longer ago belongs to an earlier incident
DENSE_S = 120.0  # each round is recorded for so long after a verdict,
SPARSE_S = 60.0  # and then one in so long
RETRY_S = 5.0  # between two tries to store an incident while the disk is full
ADOPTED = timedelta(days=7)  # an incident that its writer left so long ago is not continued
START_SLACK = timedelta(seconds=5)  # error of the start time of a process
LONGEST_LABEL = 100  # characters


@dataclass(frozen=True, slots=True)
class Change:
    """What listeners hear: an incident was reported, became firmer, or is over."""

    kind: str  # opened | updated | closed
    incident: IncidentRecord


@dataclass(frozen=True, slots=True)
class _About:
    """What is known of a job from its first rounds."""

    label: str
    user: str | None
    slurm_job: str | None
    world_size: int | None


@dataclass(slots=True)
class _Current:
    """The incident of a job that goes on."""

    record: IncidentRecord
    suspected_s: float  # last time at which something was wrong, clock of the session
    began_s: float
    reported: bool = False
    stored: bool = False  # it has a folder
    tried_s: float = 0.0  # when it last should have got one
    verdict_s: float | None = None  # when the newest verdict was given
    appended_s: float = 0.0
    dead: int = 0  # ranks known to have ended
    written: dict[str, float] = field(default_factory=dict)  # newest snapshot on disk, by host

    def note(self, shots: Sequence[Snapshot], at: float) -> None:
        """These snapshots are on disk."""
        self.appended_s = at
        for shot in shots:
            self.written[shot.host] = max(shot.at_s, self.written.get(shot.host, shot.at_s))


class IncidentLog:
    """Keeps the incidents of all watched jobs. It raises no OSError; `say` gets each kind of trouble once."""

    def __init__(
        self,
        store: IncidentStore | None,
        say: Callable[[str], None] = lambda text: None,
        listeners: Sequence[Callable[[Change], None]] = (),
        step: str = "",
    ) -> None:
        """`step`: the Slurm step whose tasks share their incidents, see `step_of`; "": there are none."""
        self.store = store
        self.step = step
        self.listeners = listeners
        self._say = say
        self._said: set[str] = set()
        self._current: dict[str, _Current] = {}
        self._left: dict[str, IncidentRecord] = {}  # by job: incidents whose writer has gone
        self._about: dict[str, _About] = {}
        self._newest: dict[str, tuple[Sequence[Snapshot], float]] = {}  # history of each job, and its time
        self._passed: dict[str, float] = {}  # longest suspicion of each job that passed (s)
        self._unsaved: dict[str, IncidentRecord] = {}  # by id: records that a full disk did not take
        self._saved_s = 0.0  # when they were last tried (monotonic)

    def incident(self, job: str) -> IncidentRecord | None:
        """The incident of a job that goes on and was reported."""
        current = self._current.get(job)
        return current.record if current and current.reported else None

    def observe(self, job: str, facts: Facts, shots: Sequence[Snapshot], at: float) -> None:
        """Take one round of a job: its facts, its history, and the time (monotonic, s).

        The first suspicion puts the history on disk before it returns.
        """
        self._newest[job] = shots, at
        if self._unsaved and at - self._saved_s >= RETRY_S:
            self._save_again(at)
        if job not in self._about:
            self._about[job] = _about(shots)
        if job in self._left:
            self._continue(job, facts)
        suspected = _is_suspected(facts)
        current = self._current.get(job)
        if current is None:
            stall_s = facts.job.stall.seconds or 0.0
            if suspected and (facts.job.exit.fault or stall_s >= self._passed.get(job, 0.0)):
                onset_s = facts.job.exit.fault_s if facts.job.exit.fault else stall_s
                self._begin(job, onset_s or 0.0)
            return
        if not current.stored and not current.record.step and at - current.tried_s >= RETRY_S:
            self._keep(current, shots, at)
        if suspected:
            current.suspected_s = at
        elif not current.reported and at - current.suspected_s >= PASSED_S:
            self._passed[job] = min(max(self._passed.get(job, 0.0), at - current.began_s), MAX_PASSED_S)
            self._drop(job)
            return
        self._append(current, shots, at, suspected)

    def verdict(self, job: str, verdict: Verdict) -> IncidentRecord | None:
        """Take a reported verdict; the incident that it belongs to, or None if nothing is wrong with the job.

        A verdict replaces an earlier one of the same incident if it is not less certain, or its status differs.
        """
        if verdict.status not in WRONG:
            return None
        if job in self._left:
            self._take_over(job)
        current = self._current.get(job) or self._begin(job, verdict.stalled_for_s or 0.0)
        new = to_json(verdict)
        old = current.record.verdicts[-1] if current.record.verdicts else None
        current.verdict_s = self._newest[job][1] if job in self._newest else None
        if old is not None and not _replaces(new, old):
            return current.record
        record = replace(
            current.record,
            status=verdict.status,
            updated=_now(),
            hosts=verdict.job.hosts or current.record.hosts,
            world_size=verdict.job.world_size or current.record.world_size,
            verdicts=_bounded((*current.record.verdicts, new)),
        )
        current.record = replace(record, recurrence=recurrence(record, self._others()))
        if self.store and current.stored:
            self.store.append(record.id, (), verdict)
        self._save(current)
        first, current.reported = not current.reported, True
        if first and current.stored and self.store:
            self._say_once(f"keeping this incident and its evidence in {self.store.path(record.id)}", "kept")
        self._tell("opened" if first else "updated", current.record)
        return current.record

    def recovered(self, job: str) -> None:
        """The job makes progress again. A suspicion that was not reported passes by itself, see `observe`."""
        current = self._current.get(job)
        if current is not None and current.reported:
            since = parse_time(current.record.onset)
            age = f" after {seconds((datetime.now(timezone.utc) - since).total_seconds())}" if since else ""
            self._finish(job, Outcome("recovered", f"The job makes progress again{age}.", _now()))

    def ended(self, job: str, facts: Facts | None) -> None:
        """Every rank of the job has ended; without facts, it was lost sight of."""
        current = self._current.get(job)
        self._finish(job, outcome_of(facts, _now(), bool(current and current.record.status == "stalled")))
        for known in (self._about, self._newest, self._passed):
            known.pop(job, None)

    def resume(self) -> tuple[IncidentRecord, ...]:
        """Find the incidents of this host that a hangdoc left unfinished; `observe` continues those of the same job."""
        if self.store is None:
            return ()
        since = datetime.now(timezone.utc) - ADOPTED
        found: tuple[IncidentRecord, ...] = ()
        with suppress(OSError):
            found = tuple(
                entry.record
                for entry in self.store.entries()
                if entry.record and not entry.open and entry.record.ended is None and _is_ours(entry.id)
                and (updated := parse_time(entry.record.updated)) and updated >= since
            )  # fmt: skip
        self._left = {record.job: record for record in reversed(found)}
        return found

    def settle(self, jobs: Collection[str] | None = None) -> None:
        """Close the incidents found by `resume` that `observe` has not taken over: they are lost.

        `jobs`: only those of these jobs.
        """
        for job in [job for job in self._left if jobs is None or job in jobs]:
            self._adopt(job, 0.0)
            self._finish(job, Outcome("lost", "hangdoc ended before the incident did.", _now()))

    def close(self) -> None:
        """Leave every incident as it is, for another hangdoc to continue."""
        self._save_again(0.0)
        for job, current in list(self._current.items()):
            newest = self._newest.get(job)
            if not current.reported and newest and newest[1] > current.suspected_s:
                self._drop(job)
            elif self.store:
                self.store.close(current.record.id)
        self._current.clear()

    # --- the life of an incident ------------------------------------------------------------------

    def _begin(self, job: str, age_s: float) -> _Current:
        now, about = datetime.now(timezone.utc), self._about.get(job, _About("", None, None, None))
        shots, at = self._newest.get(job, ((), 0.0))
        record = IncidentRecord(
            id=self._new_id(now),
            job=job,
            label=about.label,
            user=about.user,
            slurm_job=about.slurm_job,
            world_size=about.world_size,
            hosts=tuple(sorted({shot.host for shot in shots})),
            onset=(now - timedelta(seconds=min(age_s, 1e9))).isoformat(timespec="milliseconds"),
            opened=now.isoformat(timespec="milliseconds"),
            updated=now.isoformat(timespec="milliseconds"),
            ended=None,
            status="unknown",
            step=self.step,
            processes=tuple(sorted(_processes(shots)))[:MAX_PROCESSES],
        )
        current = self._current[job] = _Current(record, at, at, dead=_dead(shots))
        self._keep(current, shots, at)
        return current

    def _new_id(self, now: datetime) -> str:
        """An ID that no other incident has: several jobs may stall in the same second."""
        place = f"slurm-{self.step}" if self.step else _host()
        known = {current.record.id for current in self._current.values()}
        while True:
            id = f"{now:%Y%m%dT%H%M%SZ}-{place}-{secrets.token_hex(2)}"
            if id not in known and not (self.store and os.path.lexists(self.store.path(id))):
                return id

    def _keep(self, current: _Current, shots: Sequence[Snapshot], at: float) -> None:
        """Give an incident its folder, with the history of the job so far."""
        if self.store is None:
            return
        current.tried_s = at
        current.stored = self._guarded(lambda store: self._open(store, current, shots), "keep incidents")
        current.note(shots, at)
        self._guarded(lambda store: store.prune(), "remove old incidents")

    def _open(self, store: IncidentStore, current: _Current, shots: Sequence[Snapshot]) -> None:
        record = current.record
        if not record.step:
            store.open(record, shots)
            return
        try:
            joined = store.join(record, shots)
        except BlockingIOError:  # another task is stuck with the lock
            current.record = replace(record, step="")
            store.open(current.record, shots)
        else:
            onset = min(joined.onset, record.onset)
            current.record = replace(record, id=joined.id, opened=joined.opened, onset=onset)

    def _append(self, current: _Current, shots: Sequence[Snapshot], at: float, suspected: bool) -> None:
        """Record the snapshots that are not on disk yet.

        Long after a verdict that still holds, these are fewer: of a stall, one round a minute; of a slow job, which is
        judged by its pace over consecutive rounds, none. A death brings the whole history.
        """
        if self.store is None or not current.stored:
            return
        fresh = [shot for shot in shots if shot.at_s > current.written.get(shot.host, float("-inf"))]
        dead = _dead(shots)
        is_old = current.verdict_s is not None and at - current.verdict_s >= DENSE_S
        if is_old and dead == current.dead and suspected == (current.record.status in ("stalled", "failed")):
            if not suspected or at - current.appended_s < SPARSE_S:
                return
            fresh = list({shot.host: shot for shot in fresh}.values())
        self.store.append(current.record.id, fresh)
        current.dead = dead
        current.note(fresh, at)

    def _finish(self, job: str, outcome: Outcome) -> None:
        """Close the incident of a job with its outcome; one that came to nothing is removed, unless it was lost."""
        current = self._current.get(job)
        if current is None:
            return
        if not current.reported and outcome.kind != "lost":
            self._drop(job)
            return
        del self._current[job]
        current.record = replace(current.record, ended=outcome.at, updated=outcome.at, outcome=outcome)
        self._save(current)
        if self.store and current.record.step and current.stored:
            self._guarded(lambda store: store.leave(current.record), "close an incident")
        elif self.store:
            self.store.close(current.record.id)
        if current.reported:
            self._tell("closed", current.record)

    def _drop(self, job: str) -> None:
        current = self._current.pop(job)
        if current.stored:
            record = current.record
            done = (lambda store: store.leave(record)) if record.step else (lambda store: store.discard(record.id))
            self._guarded(done, "remove an incident that was none")

    def _continue(self, job: str, facts: Facts) -> None:
        """Take over the incident of a job that an earlier hangdoc left, once it is known whether it goes on."""
        if _is_suspected(facts) or not _is_same_job(self._left[job], self._newest[job][0]):
            self._take_over(job)
        elif facts.job.stall.settled and facts.job.stall.progressed:
            self._take_over(job)
            self.recovered(job)  # one that was never reported passes like any other

    def _take_over(self, job: str) -> None:
        """Continue the incident that an earlier hangdoc left; that of an older job of this name is lost."""
        record, (shots, at) = self._left[job], self._newest.get(job, ((), 0.0))
        self._adopt(job, at)
        if not _is_same_job(record, shots):
            self._finish(job, Outcome("lost", "hangdoc ended before the incident did.", _now()))

    def _adopt(self, job: str, at: float) -> None:
        record = self._left.pop(job)
        current = self._current[job] = _Current(record, at, at, reported=bool(record.verdicts))
        current.stored = self._guarded(lambda store: store.open(record), "continue an incident")

    # --- disk and listeners -----------------------------------------------------------------------

    def _others(self) -> tuple[IncidentRecord, ...]:
        if self.store is None:
            return ()
        try:
            return self.store.list()
        except OSError:
            return ()

    def _save(self, current: _Current) -> None:
        record = current.record
        if current.stored and not self._update(record):
            self._unsaved[record.id] = record
        else:
            self._unsaved.pop(record.id, None)

    def _save_again(self, at: float) -> None:
        """Save what a full disk did not take; an incident that was removed to make room is gone."""
        self._saved_s = at
        for record in list(self._unsaved.values()):
            if self.store is None or not self.store.path(record.id).is_dir() or self._update(record):
                del self._unsaved[record.id]

    def _update(self, record: IncidentRecord) -> bool:
        return self._guarded(lambda store: store.update(record, merged), "update an incident")

    def _guarded(self, work: Callable[[IncidentStore], object], what: str) -> bool:
        """Work on the store; a full disk costs the oldest incidents. False: it failed, which is reported once."""
        if self.store is None:
            return False
        for tries_left in reversed(range(MAX_FREED)):
            try:
                work(self.store)
            except OSError as error:
                if error.errno in FULL and tries_left and self.store.make_room():
                    continue
                why = error.strerror or str(error)
                self._say_once(f"cannot {what} in {self.store.folder}: {why}; the watch goes on without it", what)
                return False
            return True
        return False

    def _say_once(self, text: str, kind: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            self._say(text)

    def _tell(self, kind: str, record: IncidentRecord) -> None:
        for listener in self.listeners:
            listener(Change(kind, record))


def merged(known: IncidentRecord, new: IncidentRecord) -> IncidentRecord:
    """What two tasks of a step know of their incident; `known` is on disk. The last outcome other than `lost` holds."""
    verdicts = known.verdicts
    for verdict in new.verdicts:
        if verdict not in verdicts and (not verdicts or _replaces(verdict, verdicts[-1])):
            verdicts = _bounded((*verdicts, verdict))
    lost = new.outcome is None or (new.outcome.kind == "lost" and known.outcome is not None)
    last = known if lost else new
    return replace(
        new,
        onset=min(known.onset, new.onset),
        hosts=tuple(sorted({*known.hosts, *new.hosts})),
        world_size=max(known.world_size or 0, new.world_size or 0) or None,
        status=verdicts[-1].get("status", new.status) if verdicts else new.status,
        verdicts=verdicts,
        ended=last.ended,
        outcome=last.outcome,
        recurrence=new.recurrence or known.recurrence,
    )


def _is_suspected(facts: Facts) -> bool:
    """True if the job stands still, or a rank has just ended by a fault."""
    fault_s = facts.job.exit.fault_s
    return bool(facts.job.stall.stalled) or (facts.job.exit.fault and fault_s is not None and fault_s < RECENT_S)


def _replaces(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """True if a verdict says something else than the one before, and is not less certain or of another status."""
    if new["status"] != old.get("status"):
        return True
    return _essence(new) != _essence(old) and _certainty(new) >= _certainty(old)


def _certainty(verdict: Mapping[str, Any]) -> int:
    """Index in CONFIDENCES; -1: no cause."""
    finding: Mapping[str, Any] = next(iter(verdict.get("findings") or ()), {})
    confidence = finding.get("confidence")
    return CONFIDENCES.index(confidence) if confidence in CONFIDENCES else -1


def _essence(verdict: Mapping[str, Any]) -> tuple[object, ...]:
    """What a person would act on: playbook, confidence, culprits."""
    finding: Mapping[str, Any] = next(iter(verdict.get("findings") or ()), {})
    culprits = [(one.get("rank"), one.get("pid"), one.get("host")) for one in finding.get("culprits") or ()]
    return finding.get("playbook"), finding.get("confidence"), tuple(culprits)


def _bounded(verdicts: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
    """The first verdict and the newest ones."""
    return verdicts if len(verdicts) <= MAX_VERDICTS else (verdicts[0], *verdicts[-MAX_VERDICTS + 1 :])


def _dead(shots: Sequence[Snapshot]) -> int:
    """Number of ranks that are dead in the newest snapshot of their host."""
    newest: dict[str, Snapshot] = {shot.host: shot for shot in shots}
    return sum(rank.alive is False for shot in newest.values() for rank in shot.ranks)


# --- whose incident it is -------------------------------------------------------------------------


def _about(shots: Sequence[Snapshot]) -> _About:
    """Name, owner and size of a job, from what its first ranks record."""
    ranks = [rank for shot in shots for rank in shot.ranks]
    variables: dict[str, str] = {}
    command: tuple[str, ...] = ()
    for rank in ranks:
        environ, process = rank.records.get("environ"), rank.records.get("cpu")
        variables = {**(environ.variables if isinstance(environ, Environ) else {}), **variables}
        command = command or (process.command if isinstance(process, Process) else ())
    slurm = variables.get("SLURM_JOB_ID") or variables.get("SLURM_JOBID")
    label = variables.get("SLURM_JOB_NAME") or script_of(command)
    account = next((rank.target.account for rank in ranks if rank.target.account), None)
    size = next((rank.target.world_size for rank in ranks if rank.target.world_size), None)
    return _About(label[:LONGEST_LABEL], user_of(account), slurm[:LONGEST_LABEL] if slurm else None, size)


def script_of(command: Sequence[str]) -> str:
    """The script or the module of a command line, else its program."""
    for before, word in pairwise(command):
        if before == "-m":
            return word
        if word.endswith(".py"):
            return os.path.basename(word)
    return os.path.basename(command[0]) if command else ""


def user_of(account: str | None) -> str | None:
    """The name of an account; its number if it has none."""
    if account is None or not re.fullmatch(r"[0-9]{1,10}", account):
        return account
    try:
        return pwd.getpwuid(int(account)).pw_name
    except (KeyError, OverflowError):
        return account


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", platform.node())[:100] or "unknown"


def _is_ours(id: str) -> bool:
    """True if a hangdoc on this host opened the incident."""
    return id.partition("-")[2].rpartition("-")[0] == _host()


def _processes(shots: Sequence[Snapshot]) -> set[tuple[str, int, int]]:
    """Host, PID and start time of the ranks that have a process."""
    targets = [rank.target for shot in shots for rank in shot.ranks]
    return {(target.host, target.pid, target.start_ticks) for target in targets if target.pid > 0}


def _is_same_job(record: IncidentRecord, shots: Sequence[Snapshot]) -> bool:
    """True if a rank of the incident is among these, or they are older than it: a new job may have an old one's name.

    The age is for records without processes only: it is wrong after a step of the clock.
    """
    processes = _processes(shots)
    if record.processes:
        return not processes or not processes.isdisjoint(record.processes)
    onset = parse_time(record.onset)
    starts: dict[Key, datetime] = {}
    for shot in shots:
        for rank in shot.ranks:
            process, time = rank.records.get("cpu"), parse_time(shot.time)
            if isinstance(process, Process) and time is not None:
                starts[rank.target.host, rank.target.pid] = time - timedelta(seconds=min(process.age_s, 1e9))
    return onset is None or not starts or min(starts.values()) <= onset + START_SLACK


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
