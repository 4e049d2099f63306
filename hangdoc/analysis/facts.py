"""Facts available to rules, composed from the groups that the analyses derive.

A selection over one rank reads `rank`, `pid`, `host`, `alive`, `seen` and every group by name (`stack.phase`); it reads
the job's groups as `job.GROUP.field`. An expression over the job reads the job's groups and the playbook's selections.
"""

from __future__ import annotations

import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from hangdoc.analysis import Case, Key, load, rounds
from hangdoc.analysis.collectives.channels import ChannelFacts
from hangdoc.analysis.collectives.fr_diagnosis import DumpFacts, DumpJob
from hangdoc.analysis.collectives.gradient_sync import GradientSyncFacts
from hangdoc.analysis.collectives.laps import LapsFacts
from hangdoc.analysis.collectives.membership import MembershipFacts
from hangdoc.analysis.collectives.pipeline import PipelineFacts, PipelineJob
from hangdoc.analysis.collectives.recorder import RecorderFacts
from hangdoc.analysis.collectives.reducer import ReducerFacts
from hangdoc.analysis.collectives.remote_calls import RemoteCallFacts
from hangdoc.analysis.collectives.tensor_arguments import TensorArgumentFacts, TensorArgumentJob
from hangdoc.analysis.collectives.wait_graph import WaitGraphFacts, WaitGraphJob
from hangdoc.analysis.compute.batch_size import BatchSizeFacts
from hangdoc.analysis.compute.precision import PrecisionFacts
from hangdoc.analysis.compute.recompilation import RecompilationFacts
from hangdoc.analysis.compute.replicas import ReplicaFacts, ReplicaJob
from hangdoc.analysis.compute.resources import ResourcesFacts, ResourcesJob
from hangdoc.analysis.compute.straggler import StragglerFacts
from hangdoc.analysis.data.data_paths import DataPathFacts
from hangdoc.analysis.data.dataloading import DataLoadingFacts
from hangdoc.analysis.data.host_load import LoadJob
from hangdoc.analysis.data.prompts import PromptFacts
from hangdoc.analysis.data.services import ServiceFacts
from hangdoc.analysis.data.standing_calls import CallFacts, CallJob
from hangdoc.analysis.data.storage import StorageFacts
from hangdoc.analysis.data.wait_chains import ChainFacts
from hangdoc.analysis.data.workers import WorkerFacts
from hangdoc.analysis.fast_dataclass import fast_dataclass
from hangdoc.analysis.job.aftermath import AftermathFacts, AftermathJob
from hangdoc.analysis.job.stall import StallFacts, StallJob
from hangdoc.analysis.locks.gil import GilFacts
from hangdoc.analysis.locks.lock_files import LockFileFacts
from hangdoc.analysis.locks.mutexes import MutexFacts
from hangdoc.analysis.logs.arrivals import ArrivalsJob
from hangdoc.analysis.logs.common_lines import CommonLinesJob
from hangdoc.analysis.logs.figures import FiguresFacts, FiguresJob
from hangdoc.analysis.logs.hardware_figures import HardwareFacts, HardwareJob
from hangdoc.analysis.logs.headcounts import HeadcountsJob
from hangdoc.analysis.logs.launches import LaunchesJob
from hangdoc.analysis.logs.logs import LogsFacts, LogsJob
from hangdoc.analysis.logs.measured_bandwidth import BandwidthJob
from hangdoc.analysis.logs.members import MembersJob
from hangdoc.analysis.logs.notices import NoticesFacts, NoticesJob
from hangdoc.analysis.logs.preparations import PreparationFacts, PreparationJob
from hangdoc.analysis.logs.printed_values import PrintedFacts, PrintedJob
from hangdoc.analysis.logs.rank_signs import RankSignsJob
from hangdoc.analysis.logs.recompiles import RecompilesFacts, RecompilesJob
from hangdoc.analysis.logs.reported_ports import PortsJob
from hangdoc.analysis.logs.reported_versions import VersionsFacts, VersionsJob
from hangdoc.analysis.logs.saves import SaveFacts
from hangdoc.analysis.logs.tables import TablesFacts, TablesJob
from hangdoc.analysis.logs.tallies import TalliesJob
from hangdoc.analysis.logs.terms import TermsJob
from hangdoc.analysis.logs.transport import TransportJob
from hangdoc.analysis.network.links import NetworkFacts, NetworkJob
from hangdoc.analysis.postmortem.backward_split import BackwardSplitFacts, BackwardSplitJob
from hangdoc.analysis.postmortem.last_stack import LastStackFacts, LastStackJob
from hangdoc.analysis.ranks.divergence import DivergenceFacts, DivergenceJob
from hangdoc.analysis.ranks.exceptions import ExceptionFacts
from hangdoc.analysis.ranks.exit import ExitFacts, ExitJob
from hangdoc.analysis.ranks.process import ProcessFacts
from hangdoc.analysis.ranks.progress import ProgressFacts, ProgressJob
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.analysis.ranks.world import WorldJob
from hangdoc.analysis.startup.config_skew import SettingsFacts, SettingsJob
from hangdoc.analysis.startup.gloo_mesh import MeshFacts, MeshJob
from hangdoc.analysis.startup.nccl_interfaces import FabricFacts
from hangdoc.analysis.startup.startup import StartupFacts, StartupJob
from hangdoc.evidence import RankEvidence, Snapshot


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The facts of the job, by group."""

    progress: ProgressJob
    divergence: DivergenceJob
    world: WorldJob
    exit: ExitJob
    wait_graph: WaitGraphJob
    pipeline: PipelineJob
    tensors: TensorArgumentJob
    dumps: DumpJob
    replicas: ReplicaJob
    resources: ResourcesJob
    network: NetworkJob
    settings: SettingsJob
    mesh: MeshJob
    startup: StartupJob
    logs: LogsJob
    notices: NoticesJob
    arrivals: ArrivalsJob
    launches: LaunchesJob
    headcounts: HeadcountsJob
    members: MembersJob
    recompiles: RecompilesJob
    transport: TransportJob
    preparations: PreparationJob
    ports: PortsJob
    bandwidth: BandwidthJob
    versions: VersionsJob
    printed: PrintedJob
    figures: FiguresJob
    common_lines: CommonLinesJob
    hardware: HardwareJob
    tallies: TalliesJob
    tables: TablesJob
    terms: TermsJob
    rank_signs: RankSignsJob
    calls: CallJob
    load: LoadJob
    last_stack: LastStackJob
    backward_split: BackwardSplitJob
    aftermath: AftermathJob
    stall: StallJob


@fast_dataclass(frozen=True, slots=True)
class RankFacts:
    """The facts of one rank, by group."""

    rank: int  # -1: unknown
    pid: int
    host: str
    alive: bool | None
    seen: tuple[str, ...]  # probes with a record of this rank
    job: JobFacts
    process: ProcessFacts
    stack: StackFacts
    progress: ProgressFacts
    divergence: DivergenceFacts
    exception: ExceptionFacts
    exit: ExitFacts
    wait_graph: WaitGraphFacts
    pipeline: PipelineFacts
    tensors: TensorArgumentFacts
    gradient_sync: GradientSyncFacts
    membership: MembershipFacts
    reducer: ReducerFacts
    rpc: RemoteCallFacts
    laps: LapsFacts
    channels: ChannelFacts
    recorder: RecorderFacts
    dumps: DumpFacts
    replicas: ReplicaFacts
    resources: ResourcesFacts
    precision: PrecisionFacts
    batch: BatchSizeFacts
    recompilation: RecompilationFacts
    pace: StragglerFacts
    workers: WorkerFacts
    prompt: PromptFacts
    chain: ChainFacts
    service: ServiceFacts
    storage: StorageFacts
    dataloading: DataLoadingFacts
    data_paths: DataPathFacts
    locks: MutexFacts
    gil: GilFacts
    lockfile: LockFileFacts
    network: NetworkFacts
    settings: SettingsFacts
    mesh: MeshFacts
    fabric: FabricFacts
    startup: StartupFacts
    logs: LogsFacts
    notices: NoticesFacts
    preparations: PreparationFacts
    recompiles: RecompilesFacts
    saves: SaveFacts
    versions: VersionsFacts
    printed: PrintedFacts
    figures: FiguresFacts
    hardware: HardwareFacts
    tables: TablesFacts
    calls: CallFacts
    last_stack: LastStackFacts
    backward_split: BackwardSplitFacts
    aftermath: AftermathFacts
    stall: StallFacts


def where(rank: RankFacts) -> str | None:
    """The rank's line of user code; where ranks of another side are at it too, the library frame that differs first."""
    site, inner = rank.stack.site, rank.divergence.inner
    return f"{inner}, called at {site}" if inner and site else site


class _Rank(RankFacts):
    """A rank of a case."""

    __slots__ = ("case",)
    case: Case


@dataclass(frozen=True, slots=True)
class Schema:
    """The types of the facts; rules are checked against them."""

    rank: type
    job: type
    seen_by: Mapping[str, frozenset[str]]  # by group: probes of which one must have seen a rank; some need none


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of one diagnosis, over which all playbooks are evaluated."""

    ranks: tuple[RankFacts, ...]  # sorted by rank number
    job: JobFacts
    case: Case
    seen_by: Mapping[str, frozenset[str]] = field(default_factory=dict)  # as in the schema
    deferred: Collection[str] = ()  # groups that were not derived with the job's facts: only rules read them


@cache
def groups(of: type[RankFacts] | type[JobFacts]) -> Mapping[str, type]:
    """The types of the groups of facts, by name."""
    return {name: kind for name, kind in typing.get_type_hints(of).items() if kind in load()}


@cache
def schema() -> Schema:
    """The types of the facts of all analyses."""
    seen_by = {name: frozenset(load()[kind].seen_by) for name, kind in groups(RankFacts).items()}
    return Schema(RankFacts, JobFacts, {name: probes for name, probes in seen_by.items() if probes})


@cache
def _rank_type(deferred: frozenset[str]) -> type[_Rank]:
    """A rank that derives these groups when they are first read; every other attribute is as fast as any."""
    return type("RankFacts", (_Rank,), {"__slots__": (), **{name: _derived_when_read(name) for name in deferred}})


def _derived_when_read(name: str) -> property:
    slot: Any = getattr(RankFacts, name)
    kind = groups(RankFacts)[name]

    def read(rank: _Rank) -> Any:
        try:
            return slot.__get__(rank)
        except AttributeError:  # nobody has read it
            facts: Mapping[Key, Any] = rank.case.facts(kind)
            slot.__set__(rank, facts[rank.host, rank.pid])
            return slot.__get__(rank)

    return property(read, slot.__set__)


def derive(history: Sequence[Snapshot], types: Schema) -> Facts:
    """The facts of the evidence: those of the job, those that these depend on, and others when a rule reads them."""
    history = _without_superseded(history)
    by_rank = rounds(history)
    case = Case(history, _newest(by_rank), _rounds=by_rank)
    job = JobFacts(**{name: case.job(kind) for name, kind in groups(JobFacts).items()})
    derived = {name: kind for name, kind in groups(RankFacts).items() if case.has(kind)}
    deferred = frozenset(groups(RankFacts).keys() - derived.keys())
    seen = _SortedNames()
    columns: dict[str, Iterable[Any]] = {
        "case": repeat(case),
        "rank": [-1 if one.target.rank is None else one.target.rank for one in case.ranks.values()],
        "pid": [one.target.pid for one in case.ranks.values()],
        "host": [one.target.host for one in case.ranks.values()],
        "alive": [one.alive for one in case.ranks.values()],
        "seen": [seen[tuple(one.records)] for one in case.ranks.values()],
        "job": repeat(job),
        **{name: _column(case, kind) for name, kind in derived.items()},
    }
    rank_type = _rank_type(deferred)
    ranks = [object.__new__(rank_type) for _ in case.ranks]
    for name, values in columns.items():
        for rank, value in zip(ranks, values, strict=False):
            setattr(rank, name, value)
    return Facts(tuple(sorted(ranks, key=attrgetter("rank", "host", "pid"))), job, case, types.seen_by, deferred)


class _SortedNames(dict[tuple[str, ...], tuple[str, ...]]):
    """Sorted probe names; ranks with the same records share one tuple."""

    def __missing__(self, names: tuple[str, ...]) -> tuple[str, ...]:
        ordered = tuple(sorted(names))
        self[names] = shared = ordered if ordered == names else self[ordered]
        return shared


def _without_superseded(history: Sequence[Snapshot]) -> Sequence[Snapshot]:
    """Drop a host's evidence of ranks that another host, closer to them, has since reported."""
    if not any(shot.elsewhere for shot in history):
        return history
    left: dict[str, set[int]] = {}
    kept: list[Snapshot] = []
    for shot in reversed(history):
        pids = left.setdefault(shot.host, set())
        if shot.ranks or shot.records or shot.unseen:
            kept.append(_without(shot, pids))
        pids.update(shot.elsewhere)
    return kept[::-1]


def _without(shot: Snapshot, pids: Collection[int]) -> Snapshot:
    ranks = tuple(rank for rank in shot.ranks if rank.target.pid not in pids)
    if len(ranks) == len(shot.ranks):
        return shot
    return replace(shot, ranks=ranks, unseen=tuple(lack for lack in shot.unseen if lack.pid not in pids))


def _column(case: Case, kind: type) -> Collection[Any]:
    """One group of facts, for every rank in the order of the case."""
    facts: Mapping[Key, Any] = case.facts(kind)
    # Most analyses keep the order of the ranks: then no look-up is needed.
    return facts.values() if list(facts) == list(case.ranks) else [facts[key] for key in case.ranks]


def _newest(by_rank: Mapping[Key, Sequence[tuple[Snapshot, RankEvidence]]]) -> dict[Key, RankEvidence]:
    """The newest evidence of each rank, with records carried over that a later, cheaper round did not renew."""
    newest: dict[Key, RankEvidence] = {}
    for key, seen in by_rank.items():
        records: dict[str, Any] = {}
        exit_text = end = None
        for _, rank in seen:
            records.update(rank.records)
            exit_text, end = rank.exit or exit_text, rank.end or end
        last = seen[-1][1]
        if len(last.records) == len(records) and exit_text is last.exit and end is last.end:  # nothing to carry over
            newest[key] = last
        else:
            newest[key] = RankEvidence(last.target, last.alive, records, exit_text, end)
    # Sorted by rank, not by which host reported first: ties between sides go to the first one.
    return dict(sorted(newest.items(), key=lambda item: (_number(item[1]), item[0])))


def _number(evidence: RankEvidence) -> tuple[bool, int]:
    rank = evidence.target.rank
    return rank is None, rank or 0
