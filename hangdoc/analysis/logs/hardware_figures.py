"""Analysis `hardware`: GPUs that are slowed or stand apart, and CPUs that are too few, in the output of tools."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.logs.figures import (
    MAX_SUSPECTS,
    FiguresJob,
    Numbered,
    called,
    case_figures,
    keys_of,
    numbered_as_ranks,
    suspect,
)
from hangdoc.analysis.ranks.host_ranks import on_hosts, ranks_of_host
from hangdoc.analysis.thresholds import (
    BUSY_GPU,
    COMPARABLE_RANKS,
    CORES_OVERCOMMITTED,
    CORES_OVERCOMMITTED_TWICE,
    FEW_CORES,
    IDLE_GPU,
    IDLE_POWER,
    LINK_ERRORS,
    LINK_ERRORS_APART,
    LOAD_APART,
    LOW_CLOCK,
    MANY_BUSY_THREADS_PER_CORE,
    MANY_PERIODS,
    MOST_CORES_UNUSED,
    MUCH_MORE_OF_TWO,
    ONE_CORE,
    SLOWER_RUN,
    THROTTLED_PERIODS,
)
from hangdoc.evidence.figures import Figure

MAX_SHOWN = 4

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class HardwareFacts:
    """One rank."""

    slowed: bool | None = None  # its GPU is slowed
    held: bool | None = None  # a quota, or too few cores, holds it up


@dataclass(frozen=True, slots=True)
class HardwareJob:
    """GPUs and CPUs in texts. Suspects are ranks and hosts; a GPU of no known rank is none."""

    slowed: tuple[Suspect, ...] = ()
    slowed_why: str | None = None  # "GPU 6: HW Thermal Slowdown, 795 MHz, 91 C; 1980 MHz on the other 7"
    idle_gpu: tuple[Suspect, ...] = ()
    idle_gpu_why: str | None = None  # one GPU is idle, all others are busy
    busy_gpu: tuple[Suspect, ...] = ()
    busy_gpu_why: str | None = None  # one GPU draws power, all others only spin
    faulty: tuple[Suspect, ...] = ()
    faulty_why: str | None = None  # "GPU 2: 14 uncorrected ECC errors": the others count none
    link: tuple[Suspect, ...] = ()
    link_why: str | None = None  # "GPU 3: 2 NVLinks are down": a link of one GPU is worse than those of its peers
    link_errors: bool = False  # only counters of errors show that
    held: tuple[Suspect, ...] = ()  # of the quota or the few cores below
    throttled_why: str | None = None  # a quota throttles a process: "in 99 % of the periods of its quota"
    crowded_why: str | None = None  # more threads than cores: "load 702 on 128 cores"
    crowded_proved: bool = False  # the threads of the processes were counted, too
    bound_why: str | None = None  # one process may use far fewer cores than its peers, or several share one
    bound_unranked: bool = False  # several processes share cores, and nothing shows that they are ranks
    bound_alike: bool = False  # all processes are bound alike, and nothing shows that they want more cores
    emulated_why: str | None = None  # bfloat16 on a CPU without it
    loaded: tuple[Suspect, ...] = ()
    loaded_why: str | None = None  # "load 231 on ax4; 32 on the other 3": far more than on comparable hosts


class HardwareDetector(Detector[HardwareFacts, HardwareJob]):
    rank_facts = HardwareFacts
    job_facts = HardwareJob

    def derive(self, case: Case) -> tuple[dict[Key, HardwareFacts], HardwareJob]:
        records = case_figures(case)
        if not records:
            return dict.fromkeys(case.ranks, HardwareFacts()), HardwareJob()
        values: dict[str, list[Figure]] = defaultdict(list)
        for record in records:
            for one in record.values:
                values[one.kind].append(one)
        gpus: dict[str, set[str]] = defaultdict(set)
        for owner in {one.owner for several in values.values() for one in several if one.of == "gpu"}:
            host, _, number = owner.rpartition("/")
            gpus[host].add(number)
        named = _Named(case, numbered_as_ranks(records), case.job(FiguresJob), gpus)
        slowed, slowed_why = _slowed(values)
        idle, idle_why = _idle(values)
        busy, busy_why = _busy(values)
        faulty, faulty_why = _faulty(values)
        link, link_why, by_errors = _link(values)
        throttled, throttled_why = _throttled(values["cpu throttled"], values["cpu periods"])
        bound, bound_why = _bound(values["cpu allowed"])
        unranked = alike = False
        if bound_why is None:
            bound, bound_why = _shared(values)
            unranked = any(of != "rank" for of, _ in bound)
        if bound_why is None:
            bound, bound_why = _starved(values["cpu allowed"], values["cpu setting"])
        if bound_why is None:
            counted = () if values["cpu setting"] else values["cpu threads"]  # most of these sleep
            bound_why = _confined(values["cpu allowed"], values["cpu cores"], counted)
            alike = bound_why is not None
        loaded, loaded_why = _loaded(values["cpu load"])
        crowded_why, proved = (None, False) if loaded else _crowded(values)
        job = HardwareJob(
            named.of(slowed), slowed_why, named.of(idle), idle_why, named.of(busy), busy_why,
            named.of(faulty), faulty_why, named.of(link), link_why, by_errors,
            named.of(throttled or bound) or (named.slow if throttled_why else ()), throttled_why, crowded_why, proved,
            bound_why, unranked, alike,
            _emulated(values), on_hosts(case, loaded), loaded_why,
        )  # fmt: skip
        slow, late = keys_of(case, job.slowed), keys_of(case, job.held)
        return {key: HardwareFacts(key in slow or None, key in late or None) for key in case.ranks}, job


@dataclass(frozen=True, slots=True)
class _Named:
    """Names the rank of a GPU, a host or a process."""

    case: Case
    numbered: Numbered
    figures: FiguresJob  # which ranks are slow by their own figures
    gpus: Mapping[str, Collection[str]]  # numbers of the GPUs in the texts, by host; of several hosts: local ones

    def of(self, owners: Sequence[tuple[str, str]]) -> tuple[Suspect, ...]:
        """If as many ranks are slow as GPUs or hosts are slowed, they are the same."""
        found = [one for of, owner in owners if (one := self._suspect(of, owner)) is not None]
        unknown = len(found) < len(owners) or any(one.rank is None for one in found)
        if unknown and self.slow and len(self.slow) == len(owners):
            return self.slow
        spread = [one for each in dict.fromkeys(found) for one in self._of_whole_host(each, owners)]
        return tuple(dict.fromkeys(spread))[:MAX_SUSPECTS]

    @property
    def slow(self) -> tuple[Suspect, ...]:
        """The ranks that are slow by their own figures: whom a quota throttles, if no line says whose it is."""
        return tuple(one for one in self.figures.slow if one.rank is not None)[:MAX_SUSPECTS]

    def _of_whole_host(self, one: Suspect, owners: Sequence[tuple[str, str]]) -> Sequence[Suspect]:
        """The ranks of a host, if as many of its GPUs or processes are meant, or if just its ranks are slow."""
        if one.rank is not None or not one.host:
            return [one]
        at = [owner for _, owner in owners if owner.rpartition("/")[0] == one.host]
        ranks = set(ranks_of_host(self.case, one.host))
        late = {suspect.rank for suspect in self.figures.slow}
        slow = late == ranks or (len(late) > 1 and late < ranks and self.figures.others.isdisjoint(ranks))
        # More processes than ranks: data loader workers are among them.
        listed = sum(of == "process" and owner in at for of, owner in owners)
        whole = ("host", one.host) in owners or len(set(at)) == len(ranks) or listed > len(ranks) or slow
        return on_hosts(self.case, [one]) if whole else [one]

    def _suspect(self, of: str, owner: str) -> Suspect | None:
        if of == "gpu" and owner in self.numbered.ranks:
            return suspect(of, owner, self.numbered)
        host, _, number = owner.rpartition("/")
        if of == "gpu" and host and (rank := self._rank_of_gpu(host, number)) is not None:
            return Suspect(rank, None, host)
        if of == "gpu" and host and (len(self.gpus) > 1 or not self.numbered.gpus):
            return suspect("host", host, self.numbered) if number == "0" else Suspect(None, None, host)
        if of == "process":
            return Suspect(None, None, host) if host else None
        return suspect(of, number or owner, self.numbered)

    def _rank_of_gpu(self, host: str, number: str) -> int | None:
        """The rank of a GPU of a host whose ranks and GPUs are all shown, and as many: launchers pair them in order."""
        ranks = ranks_of_host(self.case, host)
        gpus = self.gpus.get(host, ())
        paired = len(ranks) > 1 and set(gpus) == set(map(str, range(len(ranks)))) and number in gpus
        return sorted(ranks)[int(number)] if paired else None


# --- GPUs -----------------------------------------------------------------------------------------


def _newest(figures: Iterable[Figure]) -> dict[str, float]:
    return {one.owner: float(one.value) for one in figures if not one.exact}


def _slowed(values: Mapping[str, list[Figure]]) -> tuple[list[tuple[str, str]], str | None]:
    """GPUs with an active reason for lower clocks, other than a power cap, or with a far lower clock under load."""
    reasons: dict[str, list[str]] = defaultdict(list)
    kinds = {one.owner: one.of for one in values["gpu clock"]}  # a table may have a row for each rank
    for one in values["gpu slowed"]:
        if one.value not in reasons[one.owner]:
            reasons[one.owner].append(one.value)
    clocks, used = _newest(values["gpu clock"]), _newest(values["gpu utilisation"])
    loaded = {gpu: clock for gpu, clock in clocks.items() if used.get(gpu, 0.0) >= BUSY_GPU}
    usual = median(loaded.values()) if len(loaded) >= COMPARABLE_RANKS else 0.0
    low = [gpu for gpu, clock in loaded.items() if clock <= LOW_CLOCK * usual]
    found = list(dict.fromkeys([*reasons, *low]))
    if not found:
        return [], None
    warm = _newest(values["gpu temperature"])
    texts = []
    for gpu in found[:MAX_SHOWN]:
        parts = [*reasons.get(gpu, ())][:2]
        parts += [f"{clocks[gpu]:.0f} MHz"] if gpu in clocks else []
        parts += [f"{warm[gpu]:.0f} C"] if gpu in warm else []
        texts.append(f"{called(kinds.get(gpu, 'gpu'), gpu)}: {', '.join(parts)}")
    rest = [clock for gpu, clock in clocks.items() if gpu not in found]
    if rest:
        texts.append(f"{median(rest):.0f} MHz on the other {len(rest)}")
    return [(kinds.get(gpu, "gpu"), gpu) for gpu in found], "; ".join(texts)


def _idle(values: Mapping[str, list[Figure]]) -> tuple[list[tuple[str, str]], str | None]:
    used = _newest(values["gpu utilisation"])
    idle = [gpu for gpu, share in used.items() if share <= IDLE_GPU]
    busy = [gpu for gpu, share in used.items() if share >= BUSY_GPU]
    if len(idle) != 1 or len(busy) < COMPARABLE_RANKS - 1 or len(busy) + 1 < len(used):
        return [], None
    if _takes_turns(idle[0], values["gpu utilisation"]):
        return [], None
    return [("gpu", idle[0])], f"{called('gpu', idle[0])} is at {used[idle[0]]:.0f} %, the other {len(busy)} are busy"


def _takes_turns(gpu: str, utilisation: Iterable[Figure]) -> bool:
    """True if in another sample this GPU was busy and another one idle: they wait for each other in every step."""
    samples: dict[str, list[float]] = defaultdict(list)
    for one in utilisation:
        samples[one.owner].append(float(one.value))
    own = samples.pop(gpu)
    return any(
        share <= IDLE_GPU and mine >= BUSY_GPU
        for other in samples.values()
        for share, mine in zip(other, own, strict=False)
    )


def _busy(values: Mapping[str, list[Figure]]) -> tuple[list[tuple[str, str]], str | None]:
    """The one GPU that computes: all are at 100 %, and the others draw little power, as a spinning kernel does."""
    used, power, limit = (_newest(values[f"gpu {name}"]) for name in ("utilisation", "power", "power limit"))
    both = {gpu: watts for gpu, watts in power.items() if used.get(gpu, 0.0) >= BUSY_GPU}
    if len(both) < COMPARABLE_RANKS or len(both) < len(used):
        return [], None
    most = max(both, key=lambda gpu: both[gpu])
    others = [watts for gpu, watts in both.items() if gpu != most]
    spinning = all(watts <= IDLE_POWER * limit[gpu] for gpu, watts in both.items() if gpu != most and gpu in limit)
    if both[most] < MUCH_MORE_OF_TWO * max(others) or not spinning:
        return [], None
    shown = f"{both[most]:.0f} W, the others at most {max(others):.0f} W, all at full utilisation"
    return [("gpu", most)], f"{called('gpu', most)} draws {shown}"


def _faulty(values: Mapping[str, list[Figure]]) -> tuple[list[tuple[str, str]], str | None]:
    """GPUs with uncorrected ECC errors since the driver was loaded, if they are the exception."""
    errors = _newest(values["gpu ecc errors"])
    found = _exceptions(errors, [gpu for gpu, count in errors.items() if count > 0])
    texts = [f"{called('gpu', gpu)}: {errors[gpu]:.0f} uncorrected ECC errors" for gpu in found[:MAX_SHOWN]]
    return [("gpu", gpu) for gpu in found], "; ".join(texts) or None


def _link(values: Mapping[str, list[Figure]]) -> tuple[list[tuple[str, str]], str | None, bool]:
    """GPUs with an NVLink that is down, a narrower PCIe link, or far more link errors than their peers."""
    down, up = _newest(values["gpu nvlinks down"]), _newest(values["gpu nvlinks up"])
    partly, all_down = [gpu for gpu in down if gpu in up], [gpu for gpu in down if gpu not in up]
    if len(all_down) > 1 or len(up) < COMPARABLE_RANKS:
        all_down = []  # bridges join pairs of GPUs, and leave the others without a link
    if found := _exceptions(up | down, partly or all_down):
        texts = [f"{called('gpu', gpu)}: {down[gpu]:.0f} of its NVLinks are down" for gpu in found[:MAX_SHOWN]]
        return [("gpu", gpu) for gpu in found], "; ".join(texts), False
    peers = _newest(values["gpu nvlink peers"])
    alone = [gpu for gpu, count in peers.items() if not count]
    if len(alone) == 1 and len(peers) > COMPARABLE_RANKS:
        return [("gpu", alone[0])], f"{called('gpu', alone[0])}: NVLink reaches none of the other GPUs", False
    rates = _newest(values["gpu peer rate"])
    usual = median(rates.values()) if len(rates) > COMPARABLE_RANKS else 0.0
    if found := _exceptions(rates, [gpu for gpu, rate in rates.items() if rate * SLOWER_RUN <= usual]):
        texts = [f"{called('gpu', gpu)}: {rates[gpu]:.3g} GB/s to other GPUs" for gpu in found[:MAX_SHOWN]]
        return [("gpu", gpu) for gpu in found], f"{'; '.join(texts)}; {usual:.3g} GB/s on others", False
    widths, possible = _newest(values["gpu link width"]), _newest(values["gpu link width max"])
    widest = max(widths.values(), default=0.0)
    narrow = [gpu for gpu, width in widths.items() if width < widest and width < possible.get(gpu, 0.0)]
    if found := _exceptions(widths, narrow):
        texts = [f"{called('gpu', gpu)}: PCIe x{widths[gpu]:.0f}" for gpu in found[:MAX_SHOWN]]
        return [("gpu", gpu) for gpu in found], f"{'; '.join(texts)}; x{widest:.0f} on others", False
    errors = _newest(values["gpu link errors"])
    few = median(errors.values()) if errors else 0.0
    many = [gpu for gpu, count in errors.items() if count >= LINK_ERRORS and count >= LINK_ERRORS_APART * few]
    if found := _exceptions(errors, many):
        texts = [f"{called('gpu', gpu)}: {errors[gpu]:.0f} NVLink errors" for gpu in found[:MAX_SHOWN]]
        return [("gpu", gpu) for gpu in found], "; ".join(texts), True
    return [], None, False


def _exceptions(values: Values, found: Sequence[str]) -> list[str]:
    """What is found, if it is true of fewer than half of the GPUs."""
    return list(found) if 2 * len(found) < len(values) else []


# --- CPUs -----------------------------------------------------------------------------------------


def _throttled(shares: Sequence[Figure], periods: Sequence[Figure]) -> tuple[list[tuple[str, str]], str | None]:
    enough = {one.owner for one in periods if float(one.value) >= MANY_PERIODS}
    held = {
        (one.of, one.owner): float(one.value)
        for one in shares
        if one.owner in enough and float(one.value) >= THROTTLED_PERIODS
    }
    if not held:
        return [], None
    shown = [
        f"{share:.0%} of the periods of its quota{f' on {called(*key)}' if key[1] else ''}"
        for key, share in list(held.items())[:MAX_SHOWN]
    ]
    return [key for key in held if key[1]], f"throttled in {', '.join(shown)}"


def _bound(allowed: Sequence[Figure]) -> tuple[list[tuple[str, str]], str | None]:
    """Processes that may use a fraction of the cores that their peers may use."""
    cores = {(one.of, one.owner): float(one.value) for one in allowed if one.owner and float(one.value) > 0}
    if len(cores) < COMPARABLE_RANKS or _rebound(allowed):
        return [], None
    usual = median(cores.values())
    few = [key for key, count in cores.items() if count <= FEW_CORES * usual]
    if not few or len(few) * 2 >= len(cores):
        return [], None
    shown = ", ".join(f"{cores[key]:.0f} on {called(*key)}" for key in few[:MAX_SHOWN])
    return few, f"cores allowed: {shown}; {usual:.0f} on the others"


def _rebound(allowed: Iterable[Figure]) -> bool:
    """True if a rank may use several numbers of cores: the text shows more than one run of the job."""
    counts: dict[tuple[str, str], set[str]] = defaultdict(set)
    for one in allowed:
        counts[one.of, one.owner].add(one.value)
    return any(len(several) > 1 for several in counts.values())


def _fewest(allowed: Iterable[Figure]) -> dict[tuple[str, str], float]:
    """The fewest CPUs that each rank may use, in any run; of processes, if no rank is known."""
    fewest: dict[tuple[str, str], float] = {}
    for one in allowed:
        if one.owner and float(one.value) > 0:
            key = one.of, one.owner
            fewest[key] = min(float(one.value), fewest.get(key, float(one.value)))
    ranks = {key: count for key, count in fewest.items() if key[0] == "rank"}
    return ranks or fewest


def _starved(allowed: Sequence[Figure], settings: Sequence[Figure]) -> tuple[list[tuple[str, str]], str | None]:
    """Processes that compute with far more threads than the CPUs that they may use. All of them: nobody."""
    cores = _fewest(allowed)
    threads = {(one.of, one.owner): float(one.value) for one in settings}
    common = max((float(one.value) for one in settings if not one.owner), default=0.0)
    found = [key for key, count in cores.items() if threads.get(key, common) >= MANY_BUSY_THREADS_PER_CORE * count]
    if not found or (len(found) < 2 and len(found) < len(cores)):
        return [], None
    shown = ", ".join(
        f"{cores[key]:.0f} on {called(*key)} for {threads.get(key, common):.0f} computing threads"
        for key in found[:MAX_SHOWN]
    )
    return found if len(found) < len(cores) else [], f"cores allowed: {shown}"


def _confined(allowed: Sequence[Figure], known: Sequence[Figure], threads: Sequence[Figure]) -> str | None:
    """Most ranks may use one core each, and most cores of the host are left unused, or a process has many threads."""
    cores = max((float(one.value) for one in known), default=0.0)
    fewest = _fewest(allowed)
    few = {key: count for key, count in fewest.items() if count <= ONE_CORE}
    if len(few) < 2 or 2 * len(few) <= len(fewest):
        return None
    shown = ", ".join(f"{count:.0f} on {called(*key)}" for key, count in list(few.items())[:MAX_SHOWN])
    if cores >= MOST_CORES_UNUSED * sum(few.values()):
        return f"CPUs allowed: {shown}, of {cores:.0f}"
    most = max((float(one.value) for one in threads if one.of == "process"), default=0.0)
    if most >= MANY_BUSY_THREADS_PER_CORE * max(few.values()):
        return f"CPUs allowed: {shown}, and a process has {most:.0f} threads"
    return None


def _shared(values: Mapping[str, list[Figure]]) -> tuple[list[tuple[str, str]], str | None]:
    """Processes of one host that may use the same few of its CPUs only: fewer than one for each, or than its load."""
    counts = {(one.of, one.owner): float(one.value) for one in values["cpu allowed"]}
    loads, sizes = ({one.owner: float(one.value) for one in values[kind]} for kind in ("cpu load", "cpu cores"))
    users: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for figure in values["cpu set"]:
        key = figure.of, figure.owner
        if key not in users[figure.value]:
            users[figure.value].append(key)
    found: list[tuple[str, str]] = []
    texts = []
    for value, keys in users.items():
        host, _, _ = value.rpartition(" ")
        cores = counts.get(keys[0], 0.0)
        load, size = loads.get(host, 0.0), sizes.get(host, 0.0)
        waits = cores * CORES_OVERCOMMITTED_TWICE <= min(load, size)  # of many threads, while other cores are free
        if len(keys) > 1 and cores > 0 and (waits or cores * CORES_OVERCOMMITTED_TWICE <= len(keys)):
            found += keys
            same = "one core" if cores < 2 else f"{cores:.0f} cores"
            more = f" of {size:.0f}, at a load of {load:.0f}" if waits else ""
            texts.append(f"{len(keys)} processes{f' of {host}' if host else ''} share {same}{more}")
    return found, f"cores allowed: {'; '.join(list(dict.fromkeys(texts))[:MAX_SHOWN])}" if texts else None


def _crowded(values: Mapping[str, list[Figure]]) -> tuple[str | None, bool]:
    """More runnable threads than cores, by the load or by the threads of the processes and their setting."""
    cores = max((float(one.value) for one in values["cpu cores"]), default=0.0)
    if not cores:
        return None, False
    load = max((float(one.value) for one in values["cpu load"]), default=0.0)
    threads = sum(float(one.value) for one in values["cpu threads"])
    setting = max((float(one.value) for one in values["cpu setting"]), default=0.0)
    counted = threads >= MANY_BUSY_THREADS_PER_CORE * cores
    if load >= CORES_OVERCOMMITTED_TWICE * cores:
        text = f"a load of {load:.0f} on {cores:.0f} cores"
        return (f"{text}, and {threads:.0f} threads" if counted else text), counted or setting >= cores
    if counted and setting * CORES_OVERCOMMITTED >= cores:
        return f"{threads:.0f} threads on {cores:.0f} cores, with {setting:.0f} computing threads in each process", True
    return None, False


def _loaded(loads: Sequence[Figure]) -> tuple[tuple[Suspect, ...], str | None]:
    """The hosts with far more runnable threads than most of the others."""
    by_host = {one.owner: float(one.value) for one in loads if one.of == "host"}
    if len(by_host) < COMPARABLE_RANKS:
        return (), None
    usual = median(by_host.values())
    found = [host for host, load in by_host.items() if load >= LOAD_APART * max(usual, 1.0)]
    if not found or 2 * len(found) >= len(by_host):
        return (), None
    shown = ", ".join(f"{by_host[host]:.0f} on {host}" for host in found[:MAX_SHOWN])
    text = f"load {shown}; {usual:.0f} on the other {len(by_host) - len(found)}"
    return tuple(Suspect(None, None, host) for host in found)[:MAX_SUSPECTS], text


def _emulated(values: Mapping[str, list[Figure]]) -> str | None:
    if not values["cpu no bf16"] or not values["cpu uses bf16"]:
        return None
    return "the CPU has neither avx512_bf16 nor amx_bf16, and the job computes in bfloat16"


ANALYSIS = HardwareDetector()
