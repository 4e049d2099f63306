"""Metrics of the daemon: OpenMetrics on loopback, and a textfile for node_exporter.

The numbers are kept here and handed over whole, so that a scrape sees one round, and a job's series end with the job.
No label holds a PID or free text. `job_id` and not `job`: Prometheus gives `job` to the name of the scraped service.
"""

from __future__ import annotations

import re
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from hangdoc import __version__
from hangdoc.errors import HangdocError
from hangdoc.system.private_files import replace_file
from hangdoc.verdict import CLASSES, STATUSES

if TYPE_CHECKING:
    from prometheus_client.core import Metric

ADDRESS = "127.0.0.1"
MAX_JOBS = 1_000  # with series of their own
MAX_PLAYBOOKS = 500  # counted apart; a site has its own beside ours
MAX_PROBES = 100
MAX_LABEL = 80  # characters of a label's value
OTHER = "other"  # label of what is over a limit
MAX_CLIENTS = 4  # requests at a time
CLIENT_S = 5.0  # for a client that sends or takes nothing
READABLE = 0o644  # of the textfile: node_exporter runs as another user
BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class JobState:
    """One job, as a round left it."""

    job: str
    status: str  # see STATUSES
    stalled_since: float | None = None  # seconds since the epoch; None: not stalled
    slurm_job: str | None = None


class Metrics:
    """What the daemon has counted; every method may be called from any thread."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry

        self._lock = threading.Lock()
        self._jobs: tuple[JobState, ...] = ()
        self._incidents: Counter[tuple[str, str]] = Counter()  # class and playbook
        self._probe_failures: Counter[str] = Counter()
        self._rounds = [0] * (len(BUCKETS_S) + 1)
        self._round_sum_s = 0.0
        self._last_round: float | None = None
        self._cpu_s = 0.0
        self._memory_bytes = 0
        self._level = 0
        self._alerts: Mapping[tuple[str, str], int] = {}
        self._spool: Mapping[str, int] = {}
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    # --- what the daemon says ---------------------------------------------------------------------

    def round(self, duration_s: float, jobs: Iterable[JobState], at: float | None = None) -> None:
        """A round was finished; `jobs`: all that are watched now. `at`: seconds since the epoch."""
        with self._lock:
            self._jobs = tuple(jobs)
            self._rounds[bisect_left(BUCKETS_S, duration_s)] += 1
            self._round_sum_s += duration_s
            self._last_round = time.time() if at is None else at

    def incident(self, cls: str, playbook: str) -> None:
        """Count an incident, once: when its cause is known, or when it ends without one ("")."""
        key = (cls if cls in CLASSES else "unknown", _label(playbook) or "unknown")
        with self._lock:
            full = len(self._incidents) >= MAX_PLAYBOOKS and key not in self._incidents
            self._incidents[(key[0], OTHER) if full else key] += 1

    def probe_failed(self, probe: str, count: int = 1) -> None:
        """A probe failed, or was not done in time."""
        name = _label(probe)
        with self._lock:
            full = len(self._probe_failures) >= MAX_PROBES and name not in self._probe_failures
            self._probe_failures[OTHER if full else name] += count

    def usage(self, cpu_s: float, memory_bytes: int, governor_level: int) -> None:
        """What the daemon has used with its children: CPU time since its start, memory now."""
        with self._lock:
            self._cpu_s = max(self._cpu_s, cpu_s)
            self._memory_bytes = memory_bytes
            self._level = governor_level

    def alerts(self, outcomes: Mapping[tuple[str, str], int], waiting: Mapping[str, int]) -> None:
        """The counters of `Alerts`: `outcomes` and `waiting`."""
        with self._lock:
            self._alerts, self._spool = dict(outcomes), dict(waiting)

    # --- what Prometheus reads --------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """Every family, of one instant."""
        with self._lock:
            return iter(list(self._families()))

    def _families(self) -> Iterator[Metric]:
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
            InfoMetricFamily,
        )

        yield InfoMetricFamily("hangdoc_build", "Version of hangdoc.", {"version": __version__})

        jobs = GaugeMetricFamily("hangdoc_jobs", "Jobs by the status of their newest verdict.", labels=["status"])
        count = Counter(job.status if job.status in STATUSES else "unknown" for job in self._jobs)
        for status in STATUSES:
            jobs.add_metric([status], count[status])
        yield jobs
        yield self._stalled()

        incidents = CounterMetricFamily(
            "hangdoc_incidents", "Incidents by class and playbook.", labels=["class", "playbook"]
        )
        for (cls, playbook), number in sorted(self._incidents.items()):
            incidents.add_metric([cls, playbook], number)
        yield incidents

        rounds = HistogramMetricFamily("hangdoc_round_seconds", "Duration of the rounds that were finished.")
        total, buckets = 0, []
        for bound, number in zip((*map(str, BUCKETS_S), "+Inf"), self._rounds, strict=True):
            total += number
            buckets.append((bound, total))
        rounds.add_metric([], buckets, self._round_sum_s)
        yield rounds
        if self._last_round is not None:
            yield GaugeMetricFamily(
                "hangdoc_last_round_timestamp_seconds", "Time at which the last round was finished.", self._last_round
            )

        failures = CounterMetricFamily(
            "hangdoc_probe_failures", "Probes that failed or were not done in time.", labels=["probe"]
        )
        for probe, number in sorted(self._probe_failures.items()):
            failures.add_metric([probe], number)
        yield failures

        cpu = CounterMetricFamily("hangdoc_self_cpu_seconds", "CPU time of hangdoc and its children.")
        cpu.add_metric([], self._cpu_s)
        yield cpu
        yield GaugeMetricFamily("hangdoc_self_memory_bytes", "Memory of hangdoc and its children.", self._memory_bytes)
        yield GaugeMetricFamily(
            "hangdoc_governor_level", "Steps that hangdoc went down to keep its budget; 0: none.", self._level
        )

        alerts = CounterMetricFamily(
            "hangdoc_alerts", "Alerts by receiver and outcome.", labels=["receiver", "outcome"]
        )
        for (receiver, outcome), number in sorted(self._alerts.items()):
            alerts.add_metric([receiver, outcome], number)
        yield alerts
        spool = GaugeMetricFamily("hangdoc_spool_entries", "Alerts that wait for their receiver.", labels=["receiver"])
        for receiver, number in sorted(self._spool.items()):
            spool.add_metric([receiver], number)
        yield spool

    def _stalled(self) -> Metric:
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(
            "hangdoc_job_stalled_timestamp_seconds",
            "Time at which the progress of a stalled job ended.",
            labels=["job_id", "slurm_job"],
        )
        stalled: dict[tuple[str, str], float] = {}  # of jobs with equal labels the oldest
        for job in self._jobs:
            if job.stalled_since is not None and len(stalled) < MAX_JOBS:
                key = (_label(job.job), _label(job.slurm_job or ""))
                stalled[key] = min(job.stalled_since, stalled.get(key, job.stalled_since))
        for (id, slurm_job), since in sorted(stalled.items()):
            family.add_metric([id, slurm_job], since)
        return family


def _label(text: str) -> str:
    """A text as the value of a label: short, of plain characters."""
    return re.sub(r"[^\w.:/@+-]", "_", text, flags=re.ASCII)[:MAX_LABEL]


def write_textfile(metrics: Metrics, path: Path) -> None:
    """Write the metrics for node_exporter, atomically and readable by it. Raises OSError."""
    from prometheus_client import generate_latest

    replace_file(path, generate_latest(metrics.registry), READABLE)


# --- HTTP -----------------------------------------------------------------------------------------


class MetricsServer:
    """`/metrics` and `/healthz` on loopback, in a thread of its own.

    `health` gives an empty text while rounds finish, and otherwise the reason for 503; it must be quick.
    """

    def __init__(self, metrics: Metrics, health: Callable[[], str], port: int) -> None:
        """`port` 0 takes a free one. Raises HangdocError if the port is taken."""
        self._metrics = metrics
        self._health = health
        try:
            self._server = _Server((ADDRESS, port), _Handler)
        except OSError as error:
            raise HangdocError(f"{ADDRESS}:{port}: {error.strerror}; set another `port` in [metrics]") from None
        self._server.set_app(self._answer)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="hangdoc-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Sequence[bytes]:
        status, kind, body = "404 Not Found", "text/plain; charset=utf-8", b"/metrics and /healthz are here\n"
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            status, body = "405 Method Not Allowed", b""
        elif environ["PATH_INFO"] == "/metrics":
            from prometheus_client.exposition import choose_encoder

            encode, kind = choose_encoder(environ.get("HTTP_ACCEPT", ""))
            status, body = "200 OK", encode(self._metrics.registry)
        elif environ["PATH_INFO"] == "/healthz":
            why = self._health()
            status, body = ("503 Service Unavailable", f"{why}\n".encode()) if why else ("200 OK", b"ok\n")
        start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_S

    def log_message(self, *arguments: object) -> None:
        """A scrape is no event."""


class _Server(WSGIServer):
    """A thread for each of a few clients; more are turned away."""

    request_queue_size = 16

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        self._free = threading.BoundedSemaphore(MAX_CLIENTS)
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """As WSGIServer, but without a name lookup of the host, which may take long."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = ADDRESS, self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        threading.Thread(target=self._serve, args=(request, client_address), daemon=True).start()

    def _serve(self, request: Any, client_address: Any) -> None:
        try:
            with suppress(OSError):
                self.finish_request(request, client_address)
        finally:
            self.shutdown_request(request)
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is no event."""
