"""Everything that the daemon of one node holds: its source, its jobs, its incidents, and who hears of them."""

from __future__ import annotations

import platform
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

from hangdoc.alerts.alerts import Alerts
from hangdoc.analysis import Key
from hangdoc.daemon.actions import Actions
from hangdoc.daemon.agents import AgentServer
from hangdoc.daemon.board import Board
from hangdoc.daemon.config import Config
from hangdoc.daemon.governor import Budget, Governor
from hangdoc.daemon.health import Liveness, Steps
from hangdoc.daemon.log import Log
from hangdoc.daemon.metrics import JobState, Metrics, MetricsServer, write_textfile
from hangdoc.daemon.notify import Notifier
from hangdoc.daemon.probe_limits import LimitedProbe, limited
from hangdoc.daemon.rounds import Hooks, Rounds
from hangdoc.daemon.state import Ledger, StateLock, processes_of
from hangdoc.diagnose import load_judge
from hangdoc.evidence import Snapshot, Target
from hangdoc.evidence.memory import share_heap
from hangdoc.incident.log import Change, IncidentLog, script_of, user_of
from hangdoc.incident.record import IncidentRecord
from hangdoc.incident.store import IncidentStore, Limits
from hangdoc.system import node_socket, procfs
from hangdoc.verdict import Verdict
from hangdoc.watch.live import Event, Live, WatchedJob
from hangdoc.watch.sampler import Sampler
from hangdoc.watch.session import Session, WatchOptions
from hangdoc.watch.sources import LocalSource, Source
from probes import Probe, Tier
from probes import load as load_probes

MAX_RANKS = 1024  # of this host; anybody can start processes that look like ranks
RESUME_S = 60.0  # a job that is not seen again for so long after the start has ended meanwhile
TEXTFILE_S = 15.0  # between two writes: a usual scrape interval
DAY_S = 86_400.0
MIB = 1 << 20


class Node(AbstractContextManager["Node"]):
    """The state of the daemon. Made and closed by the main thread, used by the thread that runs the rounds."""

    def __init__(self, config: Config, root: Path, steps: Steps, log: Log, notifier: Notifier) -> None:
        """Raises HangdocError: another daemon uses `root`, a port is taken, or a playbook is missing."""
        self._config, self._root, self._log = config, root, log
        self._began_s = time.monotonic()
        self._written_s = 0.0  # when the textfile was written
        with ExitStack() as stack:
            lock = StateLock(root)
            stack.callback(lock.close)
            share_heap()
            self._ledger = Ledger(root, log.once)
            self._alerts = Alerts(config.alerts, root / "spool", log.once)
            stack.callback(lambda: self._alerts.close())
            self._metrics = Metrics()
            self._liveness = Liveness(notifier)
            self._store = IncidentStore(root, _limits(config), log.once)
            self._incidents = IncidentLog(self._store, log.once, [self._changed])
            stack.callback(self._incidents.close)
            resumed = self._incidents.resume()
            self._left = {record.job: record.id for record in resumed}
            self._counted = {record.id for record in resumed if _cause(record) is not None}
            self._board: Board | None = None
            source, probes = self._source(steps, stack)
            options = WatchOptions(
                playbooks=tuple(map(Path, config.daemon.playbooks)),
                interval_s=config.daemon.interval_s,
                ask=frozenset(config.daemon.ask),
            )
            judge = load_judge(options.playbooks, log.warning)
            faults = {playbook.id: playbook.envelope.fault for playbook in judge.library.playbooks}
            self._actions = Actions(config.actions, root, self._store.path, faults.get, log.notice)
            live = Live(options, Session(source, None), judge, self._event, _ignore, self._incidents)
            hooks = Hooks(self._finished, self._metrics.probe_failed, self._found)
            governor = Governor(_budget(config))
            self.rounds = Rounds(live, governor, steps, self._liveness, log, probes, hooks, self._board)
            if config.metrics.port:
                stack.callback(MetricsServer(self._metrics, self._liveness.trouble, config.metrics.port).close)
            self._alerts.resume(self._store.list())
            self._listen(probes, stack)
            self._stack = stack.pop_all()

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def configure(self, config: Config) -> None:
        """Put another configuration into effect; jobs, incidents and their history stay.

        The port, the fleet and the playbooks take effect with the next start.
        """
        old, self._config = self._config, config
        self.rounds.governor.budget = _budget(config)
        self._store.limits = _limits(config)
        self._actions.config = config.actions
        if config.alerts != old.alerts or config.alerts.apprise:  # a file of its addresses may have changed
            self._alerts.close()
            self._alerts = Alerts(config.alerts, self._root / "spool", self._log.once)
        if (config.metrics.port, config.fleet, config.daemon) != (old.metrics.port, old.fleet, old.daemon):
            self._log.warning("changes of [daemon], [fleet] and the port take effect with the next start")

    def blocked(self, step: str) -> None:
        """A round was abandoned in this step."""
        self._liveness.blocked(step)
        self._metrics.probe_failed(step.removeprefix("probe "))
        self.rounds.abandoned(step)

    def summary(self) -> str:
        """One line for `systemctl status`."""
        session, governor = self.rounds.session, self.rounds.governor
        jobs, ranks = len(session.jobs), len(session.source.targets)
        cost = f"CPU {100 * governor.share:.2f} % of a core, {governor.usage.memory_mib:.0f} MiB"
        return f"{jobs} jobs, {ranks} ranks, {len(self._ledger)} open incidents; {cost}"

    # --- source -----------------------------------------------------------------------------------

    def _source(self, steps: Steps, stack: ExitStack) -> tuple[Source, tuple[LimitedProbe, ...]]:
        ask = frozenset(self._config.daemon.ask)
        if fleet := self._config.fleet.options():
            from hangdoc.fleet.collector import start_fleet

            collector = start_fleet(fleet, self._log.once, ask)
            stack.callback(collector.close)
            return collector, ()
        probes = limited(load_probes(), steps, self._metrics.probe_failed)
        sampler = Sampler(platform.node(), (), probes, ask=ask)
        source = _SharedSource(sampler=sampler, admit=self._admits, opt_out=self._config.jobs.opt_out)
        if _socket_path(self._config):
            source.board = self._board = Board([probe.name for probe in probes if probe.steady])
        return source, probes

    def _listen(self, probes: Sequence[Probe], stack: ExitStack) -> None:
        """Answer agents on the socket. Without it, the daemon does all of its other work."""
        if self._board is None:
            return
        path = _socket_path(self._config)
        hosts = frozenset(probe.name for probe in probes if probe.scope == "host")
        try:
            stack.callback(AgentServer(path, self._board, hosts, self._log.once).close)
        except OSError as error:
            self._log.warning(f"agents cannot ask this daemon at {path}: {error.strerror or error}")

    def _admits(self, target: Target, environ: Mapping[str, str]) -> bool:
        """True if [jobs] selects the job of this rank."""
        jobs = self._config.jobs
        if len(self.rounds.session.source.targets) >= MAX_RANKS:
            self._log.once(f"more than {MAX_RANKS} processes look like ranks; the others are not watched")
            return False
        if not (jobs.users or jobs.slurm_jobs or jobs.labels):
            return True
        label = environ.get("SLURM_JOB_NAME") or script_of(procfs.strings(f"/proc/{target.pid}/cmdline") or ())
        return jobs.wanted(user_of(target.account), environ.get("SLURM_JOB_ID"), label)

    def _found(self) -> None:
        """After a search: close what an earlier daemon left, if its job has ended since.

        A job that this daemon has seen, too, ends in its own round: then its incident is continued, and has an outcome.
        """
        if not self._left:
            return
        late = time.monotonic() - self._began_s > RESUME_S
        jobs = self.rounds.session.jobs
        ended = {
            job
            for job, id in self._left.items()
            if job not in jobs and (late or self._ledger.has_ended(id))
        }  # fmt: skip
        if ended:
            self._incidents.settle(ended)
        self._left = {} if late else {job: id for job, id in self._left.items() if job not in ended}

    # --- what has happened ------------------------------------------------------------------------

    def _changed(self, change: Change) -> None:
        """An incident was opened, updated or closed. A listener that fails costs nobody else the news."""
        record = change.incident
        if change.kind == "closed":
            self._ledger.close(record.id)
            text = record.outcome.text if record.outcome else "over"
            self._log.notice(f"{record.id}: job {record.job}: {text}")
        else:
            targets = [target for target in self.rounds.session.source.targets if target.job == record.job]
            self._ledger.open(record.id, record.job, processes_of(targets))
        self._count(change)
        try:
            self._alerts.notify(change)
        except Exception as error:
            self._log.error(f"{record.id}: its alert could not be queued: {type(error).__name__}: {error}")
        try:
            self._actions.notify(change)
        except Exception as error:
            self._log.error(f"{record.id}: its action failed: {type(error).__name__}: {error}")

    def _count(self, change: Change) -> None:
        """Count an incident once: when its cause is known, or when it ends without one."""
        record = change.incident
        cause = _cause(record)
        if record.id not in self._counted and (cause or change.kind == "closed"):
            self._metrics.incident(*(cause or ("", "")))
            self._counted.add(record.id)
        if change.kind == "closed":
            self._counted.discard(record.id)

    def _finished(self, seconds: float) -> None:
        """A round has finished: metrics and heartbeats follow."""
        live, governor = self.rounds.live, self.rounds.governor
        self._metrics.round(seconds, [_job_state(job, watched) for job, watched in live.watched.items()])
        usage = governor.usage
        self._metrics.usage(usage.cpu_s, int(usage.memory_mib * MIB), governor.level)
        try:
            self._alerts.step()
            self._metrics.alerts(self._alerts.outcomes, self._alerts.waiting)
            self._write_textfile()
        except OSError as error:
            self._log.once(f"alerts or the textfile of metrics could not be written: {error.strerror or error}")

    def _write_textfile(self) -> None:
        now_s, path = time.monotonic(), self._config.metrics.textfile
        if path and now_s - self._written_s >= TEXTFILE_S:
            self._written_s = now_s
            write_textfile(self._metrics, Path(path))

    def _event(self, event: Event) -> None:
        """One line for each event of the live watch."""
        job = event.verdict.job.id if event.verdict else event.data.get("job")
        if event.verdict:
            id = event.data.get("incident")
            self._log.warning(f"{f'{id}: ' if id else ''}job {job}: {_headline(event.verdict)}")
        elif event.kind == "node_lost":
            self._log.warning(f"host {event.data['host']} is lost: {event.data['why']}")
        elif event.kind == "stall":
            self._log.notice(f"job {job}: no progress for {event.data['seconds'] or 0:.0f} s, examining it")
        elif event.kind == "started":
            self._log.info(f"job {job}: watching {len(event.data['ranks'])} ranks")
        elif event.kind == "rank_exited":
            self._log.info(f"job {job}: rank {event.data['rank']} has ended: {event.data.get('exit', 'unknown how')}")
        else:
            self._log.info(f"job {job}: {event.kind.replace('_', ' ')}")


@dataclass(slots=True)
class _SharedSource(LocalSource):
    """The ranks of this host; each round is left on the board, too."""

    board: Board | None = None

    def round(self, tier: Tier, still: Collection[Key] = ()) -> tuple[Snapshot]:
        shots = LocalSource.round(self, tier, still)
        if self.board is not None:
            self.board.put(shots[0])
        return shots


def _socket_path(config: Config) -> str:
    """Where agents ask; "": nowhere."""
    path = config.daemon.socket
    return "" if path == "off" else path or node_socket.served_path()


def _headline(verdict: Verdict) -> str:
    """Status, cause and its confidence, on one line."""
    best = next(iter(verdict.findings), None)
    if best is None:
        return f"{verdict.status}: {verdict.note}"
    return f"{verdict.status}: {best.title} ({best.confidence} confidence)"


def _cause(record: IncidentRecord) -> tuple[str, str] | None:
    """Class and playbook of the best finding; None: no cause is known."""
    for verdict in reversed(record.verdicts):
        for finding in verdict.get("findings", ()):
            return str(finding.get("class", "")), str(finding.get("playbook", ""))
    return None


def _job_state(job: str, watched: WatchedJob) -> JobState:
    status = watched.last.status if watched.last else "unknown"
    stalled = watched.state == "stalled"
    return JobState(job, status, time.time() - (time.monotonic() - watched.since_s) if stalled else None)


def _budget(config: Config) -> Budget:
    return Budget(config.budget.cpu_percent / 100, config.budget.memory_mib)


def _limits(config: Config) -> Limits:
    kept = config.incidents
    return Limits(kept.keep_days * DAY_S, kept.keep_count, kept.keep_mib * MIB)


def _ignore(verdict: Verdict) -> None:
    """The status line of a terminal, which a service has not."""
