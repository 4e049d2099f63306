"""From evidence to a verdict: derive the facts, evaluate the playbooks, describe the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from hangdoc.analysis.compute.loss import nonfinite_loss
from hangdoc.analysis.facts import Facts, RankFacts, Schema, derive, where
from hangdoc.analysis.facts import schema as load_schema
from hangdoc.analysis.startup.differences import differences
from hangdoc.analysis.thresholds import STILL_LOOKS
from hangdoc.evidence import Snapshot, Unseen
from hangdoc.evidence.memory import gc_paused
from hangdoc.formatting import name_processes, name_ranks, seconds
from hangdoc.rules.evaluate import FAILED, evaluate
from hangdoc.rules.families import likely_families, understood
from hangdoc.rules.library import Library
from hangdoc.verdict import Considered, Finding, Job, RankLine, Verdict

# A rank may keep its peers waiting for this long: an idle one for a request or the next file, a busy one to work alone.
# One that goes through a `for` loop may take longer: to evaluate, for example.
LONG_S = 60.0
LONG_PHASES = frozenset({"idle", "compute", "unknown"})
LAST_MOVES_S = 15.0  # between a rank's error and its end: it prints a traceback, and its libraries unwind
MAX_AWAITED = 3  # ranks whose wait outside the job a note describes
MAX_ENDS = 8  # of a history, that are tried
UNEXPLAINED_S = 10.0  # age of a stall without a known cause that explains deaths: as old as one that is reported
SLOWER = 1.2  # times the usual step time, to be worth mentioning
# What to give if logs show nothing.
MORE_LOGS = (
    "Give the last lines of every rank's log, and the output of its launcher or scheduler; while the job stands still, "
    "the stacks of all ranks (`py-spy dump --nonblocking --pid PID`)"
)
# Probes that show whether a rank progresses.
PROGRESS_PROBES = ("stacks", "source", "cpu", "sockets", "io", "locks", "lockfile")


@dataclass(frozen=True, slots=True)
class Judge:
    """The playbooks and the types they were compiled against."""

    library: Library
    schema: Schema
    slow: dict[str, str] = field(default_factory=dict)  # playbooks that took too long, by id: never evaluated again

    def facts(self, history: Sequence[Snapshot]) -> Facts:
        """The facts derived from one job's history."""
        with gc_paused():
            return derive(list(history), self.schema)

    def verdict(self, facts: Facts, usual_s: float | None = None) -> Verdict:
        """The verdict on these facts; `usual_s`: step time while the job was healthy."""
        with gc_paused():
            return self._verdict(facts, usual_s)

    def before_deaths(self, facts: Facts) -> Facts | None:
        """The facts of a stall that ranks died out of; None: no rank died, or a death is the failure itself.

        A job that stood still before its first rank died has a cause that is older than the death. Ranks that raise an
        error or unwind make progress for some seconds before they end, so the last looks may have to be left out.
        """
        history = facts.case.history
        first = _first_death(history) if any(rank.alive is False for rank in facts.ranks) else None
        if first is None or facts.job.aftermath.post_mortem:
            return None
        oldest: Facts | None = None  # a stall that explains the deaths by its age alone
        for end in _ends(history[:first]):
            before = self.facts(history[:end])
            if before.job.stall.stalled:
                if self._has_known_cause(before, facts):
                    return before
                if oldest is None and (before.job.stall.seconds or 0.0) >= UNEXPLAINED_S and not _crashed(facts):
                    oldest = before
        return oldest

    def _has_known_cause(self, before: Facts, after: Facts) -> bool:
        """True if the stall was no mere pause: its cause is known, and nothing outside the job could end it.

        A crash is explained by a certain cause only: writing a core file takes long enough for peers to stand still.
        Ranks whose end was not seen may have ended well, so that the stall must be old, too.
        """
        finding = next((one for one in self.verdict(before).findings[:1] if one.status == "stalled"), None)
        if finding is None:
            return False
        if _crashed(after):
            return finding.confidence == "high"
        if not any(rank.exit.kind not in (None, "finished") for rank in after.ranks):
            return (before.job.stall.seconds or 0.0) >= UNEXPLAINED_S
        return bool(before.job.stall.internal) or finding.confidence != "low"

    def not_ruled_out(self, considered: Sequence[Considered]) -> str:
        """The playbooks for a job that makes steps, but slow or wrong ones, that could not be evaluated; "" if none."""
        stepping = {one.id for one in self.library.playbooks if one.envelope.status in ("slow", "diverging")}
        unknown: dict[str, list[str]] = {}
        for one in considered:
            if one.outcome == "unknown" and one.playbook in stepping:
                unknown.setdefault(one.why, []).append(one.playbook)
        return ", ".join(f"{', '.join(ids)} ({why})" for why, ids in unknown.items())

    def _verdict(self, facts: Facts, usual_s: float | None) -> Verdict:
        findings, considered = evaluate(self.library, facts, self.slow)
        status = _status(facts, findings)
        stalled_for = facts.job.stall.seconds if status == "stalled" else None
        notes = [_note(facts, status, findings) or (_step_time_note(facts, usual_s) if status == "slow" else "")]
        if status in ("healthy", "slow"):
            notes += _nonfinite_notes(facts)
        if status == "healthy":
            doubts = self.not_ruled_out(considered)
            notes += [_apart_note(facts), f"cannot rule out {doubts}" if doubts else ""]
        note = "; ".join(filter(None, notes))
        unseen = (*_unseen(facts), *_failed(considered))
        differing = self._differences(facts, status, findings)
        found = Verdict(status, stalled_for, _job(facts), findings, unseen, note, considered, differing)
        if not self._is_open(facts, status, findings):
            return found
        return replace(found, understood=understood(facts), families=likely_families(facts))

    def _is_open(self, facts: Facts, status: str, findings: Sequence[Finding]) -> bool:
        """True if something went wrong, and no playbook names its cause or who did it."""
        symptoms = self._symptoms()
        named = any(one.culprits or one.links for one in findings)
        if named or facts.job.logs.requested:
            return False
        if any(one.playbook not in symptoms or one.confidence != "low" for one in findings):
            return False
        return status in ("stalled", "failed") or (status == "unknown" and _has_symptom(facts))

    def _symptoms(self) -> Set[str]:
        """The ids of the playbooks that explain nothing: symptoms and guesses."""
        return {one.id for one in self.library.playbooks if one.envelope.layer in ("symptom", "guess")}

    def _differences(self, facts: Facts, status: str, findings: Sequence[Finding]) -> tuple[str, ...]:
        """How the ranks' settings differ, if nothing explains why the job stands still."""
        if status != "stalled" and not (status == "unknown" and facts.job.stall.waiting):
            return ()
        symptoms = self._symptoms()
        explained = any(finding.playbook not in symptoms for finding in findings)
        return () if explained else differences(facts.case)


def _has_symptom(facts: Facts) -> bool:
    """True if what is left of a job shows that something went wrong."""
    if facts.job.terms.likely:
        return True
    logs = facts.job.logs
    if not (logs.read or facts.job.aftermath.post_mortem):
        return False
    if any("stacks" in rank.seen for rank in facts.ranks) and not facts.job.dumps.moving:
        return True  # somebody took stacks because the job seemed to hang
    lines = logs.timeouts, logs.lost, logs.peer_errors, logs.cut_off, logs.raised, logs.host_failed
    return any(lines) or facts.job.stall.waiting > 0 or facts.job.exit.fault


def _crashed(facts: Facts) -> bool:
    """True if the first rank to end crashed, or was killed for its memory."""
    return any(rank.exit.first and (rank.exit.oom or rank.exit.kind == "crashed") for rank in facts.ranks)


def _first_death(history: Sequence[Snapshot]) -> int | None:
    """Index of the first snapshot in which a rank that was seen alive is dead, and did not exit with code 0."""
    living: set[tuple[str, int]] = set()
    for index, shot in enumerate(history):
        for rank in shot.ranks:
            key = rank.target.host, rank.target.pid
            if rank.alive:
                living.add(key)
            elif rank.alive is False and key in living and not (rank.end and rank.end.code == 0):
                return index
    return None


def _ends(history: Sequence[Snapshot]) -> list[int]:
    """Lengths of the history in which to look for a stall, longest first: it may have ended before the deaths did."""
    newest = {shot.host: shot.at_s for shot in history}
    rounds = len(history) // max(len(newest), 1)
    late = sum(newest[shot.host] - shot.at_s <= LAST_MOVES_S for shot in history) // max(len(newest), 1)
    step = max(1, -(-late // MAX_ENDS))
    lengths = [len(history) - left_out * len(newest) for left_out in range(0, min(late + 1, rounds), step)]
    return [length for length in lengths if length >= STILL_LOOKS]


def load_judge(playbooks: Sequence[Path], say: Callable[[str], None]) -> Judge:
    """The judge with the shipped playbooks and those in the folders `playbooks`; `say` gets the problems of each."""
    import playbooks as shipped
    from hangdoc.rules.loader import load

    types = load_schema()
    library = load((shipped.ROOT, *playbooks), types, checked=(shipped.ROOT,))
    for problem in library.problems:
        say(str(problem))
    return Judge(library, types)


def _status(facts: Facts, findings: Sequence[Finding]) -> str:
    stall = facts.job.stall
    if findings and findings[0].status != "unknown":
        moves = (
            stall.settled
            and not stall.stalled
            and facts.job.progress.changed
            and facts.job.network.moving is not False  # a culprit that goes on alone leaves its peers stuck
            and _culprits_move(facts, findings[0])
        )
        peers_wait = stall.stalled or facts.job.mesh.in_vain  # they have not noticed yet
        if findings[0].status == "failed" and peers_wait:
            return "stalled"
        if findings[0].status == "stalled" and findings[0].cls == "input_stall" and stall.settled and not stall.stalled:
            return "slow"  # the blocked input still delivers a little
        return "diverging" if findings[0].status == "stalled" and moves else findings[0].status
    if stall.stalled:
        return "stalled"
    if facts.job.exit.fault:
        return "failed"
    if facts.job.exit.well:
        return "healthy"
    unsettled = not stall.settled or stall.hidden or facts.job.startup.unnamed or not stall.progressed
    if unsettled or _gone(facts) or _no_ranks(facts) or _absent(facts) or _joining(facts) or undecided_ranks(facts):
        return "unknown"
    if _may_go_on_alone(facts):
        return "unknown"
    return "healthy"


def _may_go_on_alone(facts: Facts) -> bool:
    """True if a rank works while all others stand in a collective, and nothing shows whether it ever joins them."""
    standing = [one for one in facts.ranks if one.stack.phase == "collective" and one.progress.changed is False]
    working = [one for one in facts.ranks if one.progress.changed and one.stack.phase != "collective"]
    if not standing or len(working) != 1 or len(standing) != len(facts.ranks) - 1:
        return False
    return not facts.job.network.checked or any("source" not in one.seen for one in facts.ranks)


def _culprits_move(facts: Facts, finding: Finding) -> bool:
    """False if each culprit stands still: then the rest of the job soon will, whatever it does now."""
    culprits = {(one.host, one.pid) for one in finding.culprits if one.pid is not None}
    stalls = [rank.stall.still for rank in facts.ranks if (rank.host, rank.pid) in culprits]
    return not stalls or not all(stalls)


def _job(facts: Facts) -> Job:
    targets = [evidence.target for evidence in facts.case.ranks.values()]
    return Job(
        id=targets[0].job if targets else "none",
        world_size=facts.job.world.size,
        launcher=next((t.launcher for t in targets if t.launcher), None),
        hosts=tuple(sorted({t.host for t in targets})),
        ranks=tuple(
            RankLine(
                r.rank if r.rank >= 0 else None,
                r.pid if r.pid > 0 else None,
                r.host,
                r.stack.phase,
                r.stack.op,
                where(r),
            )
            for r in facts.ranks
        ),
    )


def _unseen(facts: Facts) -> tuple[Unseen, ...]:
    """Gaps in the newest round of each probe on running ranks, each once."""
    gone = {key for key, rank in facts.case.ranks.items() if rank.alive is False}
    newest: dict[tuple[str, str | None, int | None], Unseen] = {}
    for shot in facts.case.history:
        for lack in shot.unseen:
            if (lack.host or shot.host, lack.pid) not in gone:
                newest[(lack.probe, lack.host, lack.pid)] = lack
    if not newest:
        return ()
    recent = _recent(facts.case.history)
    seen_since = {
        (probe, rank.target.host, rank.target.pid) for shot in recent for rank in shot.ranks for probe in rank.records
    }
    partial = {  # gaps within a record of the same round, such as missing native frames
        (lack.probe, lack.host, lack.pid)
        for shot in recent
        for lack in shot.unseen
        for rank in shot.ranks
        if lack.pid == rank.target.pid and lack.probe in rank.records
    }
    return tuple(lack for key, lack in newest.items() if key not in seen_since or key in partial)


def _failed(considered: Sequence[Considered]) -> Iterator[Unseen]:
    """Playbooks whose rule failed."""
    for one in considered:
        if one.why.startswith(FAILED):
            yield Unseen("playbook", f"{one.playbook}: {one.why}; fix it or leave its directory out")


def _recent(history: Sequence[Snapshot]) -> list[Snapshot]:
    """The last two snapshots of each host."""
    by_host: dict[str, list[Snapshot]] = {}
    for shot in history:
        by_host.setdefault(shot.host, []).append(shot)
    return [shot for shots in by_host.values() for shot in shots[-2:]]


def _note(facts: Facts, status: str, findings: Sequence[Finding]) -> str:
    """One sentence about a job without findings."""
    if findings:
        return ""
    if status == "stalled":
        return "no playbook matches, so hangdoc names no cause"
    if status == "failed" or facts.job.exit.well:
        return _exit_note(facts)
    if status == "unknown":
        if facts.job.dumps.moving:
            return "the dumps show no stall: every rank was still moving from call to call when they were written"
        if facts.job.logs.read and not facts.job.stall.waiting:
            return _logs_note(facts)
        none = "no process group yet: not a training rank, or a rank that is still starting" if _no_ranks(facts) else ""
        notes = _absent_note, _undecided_note, _joining_note, _unproved_note
        return _exit_note(facts) or none or next((text for note in notes if (text := note(facts))), "")
    period = facts.job.progress.step_s
    steps = any(rank.progress.completed or rank.progress.advanced or rank.network.moving for rank in facts.ranks)
    return f"a step every {seconds(period)}" if period is not None and steps else _activities(facts.ranks)


def _logs_note(facts: Facts) -> str:
    """What logs without a finding show."""
    logs = facts.job.logs
    if logs.requested:
        return f"the job was ended from outside, and nothing failed before: {logs.requested}"
    if _has_symptom(facts):
        return _exit_note(facts) or "too little evidence for a verdict"
    if noted := _exit_note(facts):
        return noted
    counted = [rank for rank in facts.ranks if rank.logs.count]
    counts = ", ".join(dict.fromkeys(f"{rank.logs.count}" for rank in counted))
    last = f"; last count of {name_processes(counted)}: {counts}" if counted else ""
    return f"nothing in the logs shows that the job stopped or failed{last}. {MORE_LOGS}"


def _activities(ranks: Sequence[RankFacts]) -> str:
    """What the ranks do, those that do the same together."""
    doing: dict[str, list[RankFacts]] = {}
    for rank in ranks:
        doing.setdefault(_doing(rank), []).append(rank)
    activities = sorted(doing.items(), key=lambda item: -len(item[1]))
    return "; ".join(f"{name_processes(ranks)}: {what}" for what, ranks in activities)


def _step_time_note(facts: Facts, usual_s: float | None) -> str:
    """Step time now, and while the job was healthy."""
    progress = facts.job.progress
    now_s = progress.recent_s or progress.step_s
    if now_s is None or progress.step_s is None:
        return ""
    before = f"; it took {seconds(usual_s)} before" if usual_s is not None and usual_s < now_s / SLOWER else ""
    return f"a step takes {seconds(now_s)}{before}"


def _nonfinite_notes(facts: Facts) -> Iterator[str]:
    """Losses and parameters that hold NaN or an infinity: the job goes on, and learns nothing."""
    found: dict[str, list[RankFacts]] = {}
    for rank in facts.ranks:
        if loss := nonfinite_loss(facts.case, (rank.host, rank.pid)):
            found.setdefault(loss, []).append(rank)
        if rank.replicas.nonfinite:
            found.setdefault(f"parameter {rank.replicas.nonfinite}", []).append(rank)
    for what, ranks in found.items():
        yield f"{name_processes(ranks)}: {what}"


def _apart_note(facts: Facts) -> str:
    """A parameter that differs between ranks although no playbook applies: stages of a pipeline differ as well."""
    apart = [rank for rank in facts.ranks if rank.replicas.apart]
    if not apart:
        return ""
    odd = [rank for rank in apart if rank.replicas.odd]
    others = [rank for rank in apart if not rank.replicas.odd]
    differs = f"differs between {name_processes(apart)}"
    if odd and others:
        differs = f"of {name_processes(odd)} never equals that of {name_processes(others)}, which agree at times"
    return (
        f"parameter {apart[0].replicas.parameter} {differs}: "
        "expected of parts of one model and of local SGD, a fault in replicas"
    )


def _absent(facts: Facts) -> list[RankFacts]:
    """Ranks that make no step and have kept other ranks waiting for long; they may never continue."""
    stall = facts.job.stall
    waited_s = (stall.seconds if stall.idle else facts.job.network.idle_s) or 0.0
    if not stall.waiting:
        return []
    stepless = [rank for rank in facts.ranks if stall.idle or not rank.progress.advanced]
    return [rank for rank in stepless if waited_s >= LONG_S and rank.stack.phase in LONG_PHASES]


def _absent_note(facts: Facts) -> str:
    absent = _absent(facts)
    if not absent:
        return ""
    waited = seconds(facts.job.stall.seconds or facts.job.network.idle_s or 0.0)
    sites = ", ".join(dict.fromkeys(rank.stack.site for rank in absent if rank.stack.site))
    where = f" at {sites}" if sites else ""
    doing = {"idle": "idle", "compute": "computing"}.get(absent[0].stack.phase, "busy")
    many = len(absent) > 1
    awaits = f", where it {absent[0].chain.text}" if absent[0].chain.text and not many else ""
    return (
        f"{name_processes(absent)} {'have' if many else 'has'} kept other ranks waiting for {waited}, "
        f"{doing}{where}{awaits}; "
        f"hangdoc cannot tell whether {'they' if many else 'it'} will continue"
    )


def _joining(facts: Facts) -> list[RankFacts]:
    """Ranks in init_process_group: whatever the others do meanwhile, the job has not formed, and it may never."""
    return [rank for rank in facts.ranks if rank.startup.waits and not rank.startup.agent]


def _joining_note(facts: Facts) -> str:
    """What the ranks do that keep others waiting in init_process_group, if they make progress."""
    joining = _joining(facts)
    if not joining or not facts.job.stall.progressed:
        return ""
    waited_s = facts.job.startup.waited_s
    since = f", for at least {seconds(waited_s)}" if waited_s is not None else ""
    verb = "waits" if len(joining) == 1 else "wait"
    others = [rank for rank in facts.ranks if rank not in joining]
    return f"{name_processes(joining)} {verb} for the job to form{since}; {_activities(others)}".removesuffix("; ")


def undecided_ranks(facts: Facts) -> list[RankFacts]:
    return [rank for rank in facts.ranks if rank.batch.undecided]


def _undecided_note(facts: Facts) -> str:
    """A difference that may be chance: it was seen in too few looks."""
    if not (undecided := undecided_ranks(facts)):
        return ""
    return (
        f"{name_processes(undecided)}: seen with batches of another size than the other ranks, but not often enough to "
        "be sure; watch longer"
    )


def _unproved_note(facts: Facts) -> str:
    """Why the job may not be called healthy, although nothing was found."""
    window_s = facts.job.progress.window_s
    if window_s is None or facts.job.stall.progressed:
        return "too little evidence for a verdict"
    living = [rank for rank in facts.ranks if rank.alive is not False]
    unproved = [rank for rank in living if rank.stall.progressed is False] or living
    lacking: dict[tuple[int, ...], list[str]] = {}
    for probe in PROGRESS_PROBES:
        lacking.setdefault(tuple(i for i, rank in enumerate(living) if probe not in rank.seen), []).append(probe)
    unseen = [
        f"{', '.join(probes)} of {name_processes([living[i] for i in ranks])} not seen"
        for ranks, probes in lacking.items()
        if ranks
    ]
    stood = f"no progress seen on {name_processes(unproved)} in {seconds(window_s)}"
    awaited = [f"{name_processes([rank])} {rank.chain.text}" for rank in unproved if rank.chain.text][:MAX_AWAITED]
    activities = _activities([rank for rank in living if "stacks" in rank.seen])
    return "; ".join(part for part in (stood, *unseen, activities, *awaited) if part)


def _no_ranks(facts: Facts) -> bool:
    """True if there are only processes that the user named, without any sign of a rank."""
    groups = (facts.case.record(key, "groups") for key in facts.case.ranks)
    return all(rank.rank < 0 and not rank.stack.waits for rank in facts.ranks) and not any(
        g and g.groups for g in groups
    )


def _gone(facts: Facts) -> list[int]:
    """Ranks whose process has ended."""
    return [rank.rank for rank in facts.ranks if rank.alive is False]


def _exit_note(facts: Facts) -> str:
    gone = _gone(facts)
    if not gone:
        return ""
    if facts.job.exit.well:
        return "every rank exited with code 0"
    some = f"{name_ranks(gone)} {'has' if len(gone) == 1 else 'have'}"
    who = "every rank has" if facts.job.exit.all_ended else some
    first = [rank for rank in facts.ranks if rank.exit.first]
    if not first:
        watched = any(rank.pid > 0 for rank in facts.ranks if rank.alive is False)
        when = "while hangdoc was watching" if watched else "before hangdoc looked"
        return f"{who} ended {when}; the job's log shows whether that was intended"
    how = ", ".join(dict.fromkeys(rank.exit.text for rank in first if rank.exit.text))
    sites = ", ".join(dict.fromkeys(rank.exit.site for rank in first if rank.exit.site))
    seen = f", last seen at {sites}" if sites else ""
    return f"{who} ended, {name_processes(first)} first: {how}{seen}; see the log of {name_processes(first)}"


def _doing(rank: RankFacts) -> str:
    stack = rank.stack
    what = f"{stack.phase} {stack.op}" if stack.op and stack.op != stack.phase else stack.phase
    site = where(rank)
    return f"{what} at {site}" if site else what
