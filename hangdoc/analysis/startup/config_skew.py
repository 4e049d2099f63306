"""Analysis `settings`: ranks launched with different settings: world size, options, numeric variables, versions.

Settings that differ by design (a rank, a device, a log folder) are not compared, nor values that differ on every rank.
An option or a variable counts only if the ranks diverge along it: they are at different code locations, or pass
different tensors.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.collectives.tensor_arguments import TensorArgumentFacts
from hangdoc.analysis.ranks.call_path import is_library
from hangdoc.analysis.ranks.divergence import DivergenceFacts
from hangdoc.analysis.startup.rendezvous import launch_in
from hangdoc.analysis.thresholds import COMPARABLE_RANKS
from hangdoc.evidence import Environ, Frame, Process, ProcessGroups, Stack, Stacks, Variable
from hangdoc.evidence.limits import valid_world_size
from hangdoc.evidence.software import Versions
from hangdoc.formatting import fold_ranks, name_ranks

# Name parts of options that differ between ranks by design.
OWN = re.compile(
    r"(?:^|_)(?:\w*rank|id|idx|index|device|gpus?|cuda|ports?|addr|address|hosts?|hostname|master|ip|node|seed|logs?|logdir"
    r"|logging|verbose|quiet|debug|out|output|dir|directory|folder|path|root|file|data|shards?|trace|profile|profiler|tensorboard"
    r"|wandb|stage|role|worker|workers|name|tag|run)(?:_|$)"
)
# Name parts of options that decide how often, with what, or in which form a step runs.
STEERS = re.compile(
    r"(?:^|_)(?:accum\w*|steps?|iters?|iterations?|epochs?|batch\w*|precision|d?type|bf16|fp16|amp|tf32|config|conf|layers?|hidden"
    r"|dim|width|depth|seq\w*|vocab\w*|model|world|nnodes|nproc|parallel|tp|pp|dp|zero\w*|bucket\w*|freq\w*|interval|every|clip\w*"
    r"|ema|freeze\w*|unused|sync\w*)(?:_|$)"
)
# Name parts of variables that may hold the name under which the ranks meet in the store.
RUN_NAME = re.compile(
    r"(?:^|_)(?:run|job|session|group|prefix|name_?space|rdzv|rendezvous|experiment|exp|uuid|digest|fingerprint)(?:_|$)"
)
VARIABLES = re.compile(
    r"ACCELERATE_(?!PROCESS|TORCH_DEVICE)\w+|DEEPSPEED_\w+|FSDP_\w+|PL_TORCH\w*|PYTORCH_JIT|TORCHDYNAMO_DISABLE|NVIDIA_TF32_OVERRIDE"
    r"|(?:ATEN|ONEDNN|DNNL|MKL)_\w*(?:CAPABILITY|ISA|CBWR|MATH)\w*|\w*(?:PRECISION|DTYPE|BF16|FP16|TF32)\w*"
    r"|NCCL_(?:ALGO|PROTO|NVLS_ENABLE|COLLNET_ENABLE|P2P_DISABLE|SHM_DISABLE|NET|CROSS_NIC|MIN_NCHANNELS|MAX_NCHANNELS)"
)
C10D = "/torch/distributed/distributed_c10d.py"
OPTION = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
MAX_VALUE = 60  # characters of a value
_DIGITS = re.compile(r"\d+")

Values = Mapping[Key, str]


@dataclass(frozen=True, slots=True)
class SettingsFacts:
    """One rank's settings compared with its peers; None: equal, or not seen on all ranks."""

    outlier: bool | None = None  # it has a minority value
    parted: bool | None = None  # the ranks diverge along a setting


@dataclass(frozen=True, slots=True)
class SettingsJob:
    """Settings that differ, most significant first: "--accum = 2 on ranks 0-1, 3 on rank 2"."""

    lines: tuple[str, ...] = ()
    sizes: bool = False  # world size or number of hosts differs
    meetings: bool = False  # the file in which the ranks meet differs: `init_method`
    run_names: bool = False  # all ranks are in `init_process_group`, and a minority uses another name for the run
    prefixed: bool = False  # besides, their scripts pass it a `PrefixStore`
    versions: bool = False
    options: bool = False  # options or variables differ, and the ranks diverge along them


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that differs between ranks."""

    name: str
    values: Values
    kind: str  # size | meeting | run | version | option | variable; of `differences`, one of its KINDS
    outlier: frozenset[Key]  # ranks with a minority value


class SettingsAnalysis(Analysis[SettingsFacts, SettingsJob]):
    rank_facts = SettingsFacts
    job_facts = SettingsJob
    seen_by = ("environ", "cpu", "versions")

    def derive(self, case: Case) -> tuple[dict[Key, SettingsFacts], SettingsJob]:
        facts = dict.fromkeys(case.ranks, SettingsFacts())
        alive = [key for key in case.ranks if case.ranks[key].alive is not False]
        joining = {key: threads for key in alive if (threads := _joining_threads(case, key))}
        counted = [
            *_sizes(case, alive, joining),
            *_meetings(alive, joining),
            *_run_names(case, alive, joining),
            *_versions(case, alive),
        ]
        diverging = [one for one in (*_options(case, alive), *_variables(case, alive)) if _divides(case, one)]
        differences = [*counted, *diverging]
        if differences:
            parted = bool(diverging) or any(_divides(case, one) for one in counted)
            facts.update({key: SettingsFacts(key in differences[0].outlier, parted) for key in alive})
        kinds = {one.kind for one in differences}
        return facts, SettingsJob(
            tuple(format_difference(case, one) for one in differences),
            "size" in kinds,
            "meeting" in kinds,
            "run" in kinds,
            "run" in kinds and any(map(_passes_prefix, joining.values())),
            "version" in kinds,
            bool(diverging),
        )


# --- what is compared -----------------------------------------------------------------------------


_Joining = Mapping[Key, Sequence[Stack]]  # of the ranks that are in `init_process_group`: the threads in it


def _sizes(case: Case, keys: Sequence[Key], joining: _Joining) -> Iterator[Difference]:
    """World size, and number of hosts. A process without a number may be none of the ranks: its size is a guess."""
    ranks = [key for key in keys if case.ranks[key].target.role == "rank"]
    sizes = {key: _world_size(case, key, joining) for key in ranks if case.ranks[key].target.rank is not None}
    yield from _difference(
        "world size", {key: None if size is None else str(size) for key, size in sizes.items()}, "size"
    )
    launches = {key: launch for key in keys if (launch := launch_in(case, key))}
    yield from _difference("--nnodes", {key: one.nodes for key, one in launches.items()}, "size")


def _world_size(case: Case, key: Key, joining: _Joining) -> int | None:
    """The world size that a rank has joined or tries to join with, else that of its launch."""
    groups = case.record(key, "groups")
    passed = _passed(joining.get(key, ()))
    given = next((one.number for one in passed if one.name == "world_size" and one.kind == "int"), None)
    joined = groups.world_size if isinstance(groups, ProcessGroups) else None
    return valid_world_size(int(given) if given else joined) or case.ranks[key].target.world_size


def _joining_threads(case: Case, key: Key) -> Sequence[Stack]:
    stacks = case.record(key, "stacks")
    return [one for one in stacks.threads if any(map(_joins, one.frames))] if isinstance(stacks, Stacks) else []


def _joins(frame: Frame) -> bool:
    return frame.function == "init_process_group" and frame.file.endswith(C10D)


def _passed(threads: Iterable[Stack]) -> Iterator[Variable]:
    """The variables of `init_process_group`."""
    return _variables_in(threads, _joins)


def _variables_in(threads: Iterable[Stack], chosen: Callable[[Frame], bool]) -> Iterator[Variable]:
    """Those of the innermost frame first."""
    frames = (frame for thread in threads for frame in thread.frames)
    return (one for frame in frames if chosen(frame) for one in frame.variables or ())


def _meetings(keys: Sequence[Key], joining: _Joining) -> Iterator[Difference]:
    """The file in which ranks that are joining meet. An address may have several names."""
    given = {
        key: next((one.text.strip("\"'") for one in _passed(joining.get(key, ())) if one.name == "init_method"), "")
        for key in keys
    }
    # Of a long path, the end is what differs.
    files = {
        key: (url if len(url) <= MAX_VALUE else f"...{url[3 - MAX_VALUE :]}") if url.startswith("file:") else None
        for key, url in given.items()
    }
    yield from _difference("init_method", files, "meeting")


def _run_names(case: Case, keys: Sequence[Key], joining: _Joining) -> Iterator[Difference]:
    """Names of the run in the code that has called `init_process_group`, while every rank is in it and none is missing.

    Names that differ only in their digits number the ranks, or tell the time.
    """
    if not COMPARABLE_RANKS <= len(joining) == len(keys):
        return
    if any(_world_size(case, key, joining) != len(keys) for key in keys):
        return
    named = {key: _run_names_in(threads) for key, threads in joining.items()}
    for name in sorted(set.intersection(*map(set, named.values()))):
        values = {key: each[name] for key, each in named.items()}
        often = Counter(values.values()).most_common(1)[0][1]
        if 2 * often > len(keys) and len({_DIGITS.sub("", value) for value in values.values()}) > 1:
            yield from _difference(name, values, "run")


def _run_names_in(threads: Iterable[Stack]) -> Mapping[str, str]:
    """Variable of the user's code -> its value; of two frames, that of the outer one."""
    variables = _variables_in(threads, lambda frame: not is_library(frame.file))
    return {one.name: one.text for one in variables if one.kind == "str" and RUN_NAME.search(one.name.lower())}


def _passes_prefix(threads: Iterable[Stack]) -> bool:
    """True if a caller of `init_process_group` has a `PrefixStore`."""
    return any("PrefixStore" in one.text for one in _variables_in(threads, lambda frame: not frame.file.endswith(C10D)))


def _versions(case: Case, keys: Sequence[Key]) -> Iterator[Difference]:
    records = {key: case.record(key, "versions") for key in keys}
    for name in ("torch", "nccl", "python") if any(records.values()) else ():
        values = {key: getattr(one, name) if isinstance(one, Versions) else None for key, one in records.items()}
        yield from _difference(f"version of {name}", values, "version")


def _options(case: Case, keys: Sequence[Key]) -> Iterator[Difference]:
    commands = {key: one.command for key in keys if isinstance(one := case.record(key, "cpu"), Process)}
    given = {command: options(command) for command in set(commands.values())}
    values_of = {key: given[commands[key]] if key in commands else None for key in keys}
    for name in sorted({name for every in values_of.values() for name in every or ()}):
        plain = name.lower().replace("-", "_").replace(".", "_")
        if OWN.search(plain) and not re.fullmatch(r"(?:world|nnodes|nproc)\w*", plain):
            continue
        if STEERS.search(plain) or _is_used(case, keys, plain):
            values = {key: None if every is None else every.get(name, "not given") for key, every in values_of.items()}
            yield from _difference(f"--{name}", values, "option")


def _variables(case: Case, keys: Sequence[Key]) -> Iterator[Difference]:
    values_of = {
        key: one.variables if isinstance(one := case.record(key, "environ"), Environ) else None for key in keys
    }
    if not values_of or any(one is None for one in values_of.values()):
        return
    every = [one or {} for one in values_of.values()]
    for name in sorted(filter(VARIABLES.fullmatch, set().union(*every))):
        values = [one.get(name, "not set") for one in every]
        if len(set(values)) > 1:
            yield from _difference(name, dict(zip(values_of, values, strict=True)), "variable")


def _difference(name: str, values: Mapping[Key, str | None], kind: str) -> Iterator[Difference]:
    """The difference, if every rank's value is known, and values are neither all equal nor all different."""
    known = {key: value[:MAX_VALUE] for key, value in values.items() if value is not None}
    different = len(set(known.values()))
    if len(known) == len(values) > 1 < different and (different == 2 or different < len(known)):
        yield Difference(name, known, kind, _outliers(known))


def _outliers(values: Values) -> frozenset[Key]:
    """Ranks with a minority value; on a tie, those without the value of the first rank."""
    often = Counter(values.values())
    first = next(iter(values.values()))
    most = max(often, key=lambda value: (often[value], value == first))
    return frozenset(key for key, value in values.items() if value != most)


def options(command: Sequence[str]) -> dict[str, str]:
    """The options of a command line, after the script if there is one: name -> value, "given" for a switch."""
    start = next((at for at, word in enumerate(command[1:], 1) if not word.startswith("-")), len(command))
    found: dict[str, str] = {}
    words = list(command[start + 1 :])
    for at, word in enumerate(words):
        match = OPTION.fullmatch(word)
        if match is None:
            continue
        after = words[at + 1] if at + 1 < len(words) else ""
        value = match[2] if match[2] is not None else (after if after and not OPTION.fullmatch(after) else "given")
        found[match[1]] = f"{found[match[1]]} {value}" if match[1] in found else value
    return found


# --- what counts ----------------------------------------------------------------------------------


def _is_used(case: Case, keys: Sequence[Key], name: str) -> bool:
    """True if a loop or condition around the current line of a rank mentions the option."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    for key in keys:
        stacks, source = case.record(key, "stacks"), case.record(key, "source")
        if not isinstance(stacks, Stacks) or source is None:
            continue
        for frame in (frame for thread in stacks.threads for frame in thread.frames if not is_library(frame.file)):
            place = source.places.get(f"{frame.file}:{frame.line}")
            texts = (
                [
                    place.text,
                    *(one.header for one in (*place.loops, *place.passed)),
                    *(one.test for one in place.branches),
                ]
                if place
                else []
            )
            if any(word.search(text) for text in texts):
                return True
    return False


def _divides(case: Case, one: Difference) -> bool:
    """True if the ranks diverge along the setting, in code location or tensors."""
    position, payload = case.facts(DivergenceFacts), case.facts(TensorArgumentFacts)
    return _splits(one, lambda key: position[key].side) or _splits(one, lambda key: payload[key].differs)


def _splits(one: Difference, where: Callable[[Key], object]) -> bool:
    inside, outside = ({where(key) for key in one.values if (key in one.outlier) is part} for part in (True, False))
    return not inside & outside and None not in inside | outside


def format_difference(case: Case, one: Difference) -> str:
    """`--accum = 2 on ranks 0-1, 3 on rank 2`."""
    by_value: dict[str, list[Key]] = {}
    for key, value in one.values.items():
        by_value.setdefault(value, []).append(key)
    parts = [f"{value} on {_format_ranks(case, keys)}" for value, keys in by_value.items()]
    return f"{one.name} = {', '.join(parts)}"


def _format_ranks(case: Case, keys: Sequence[Key]) -> str:
    ranks = [case.ranks[key].target.rank for key in keys]
    numbers = [rank for rank in ranks if rank is not None]
    if len(numbers) == len(ranks):
        return name_ranks(numbers)
    nodes = [launch.node for key in keys if (launch := launch_in(case, key)) and launch.node is not None]
    if len(nodes) == len(keys):
        return f"node{'s' * (len(nodes) > 1)} {fold_ranks(nodes)}"
    return f"pid{'s' * (len(keys) > 1)} {', '.join(str(pid) for _, pid in keys)}"


ANALYSIS = SettingsAnalysis()
