"""Analysis `settings`: were the ranks told the same? World size, options, variables that steer the sums, versions.

What differs by design (a rank, a device, a folder for logs) is not compared, nor what is another on every rank. An
option or a variable counts only where the ranks divide as it does: they stand at different places, or hand over other
tensors.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.call_path import is_library
from hangdoc.analysis.startup.rendezvous import launch_in
from hangdoc.evidence import Environ, Process, Stacks
from hangdoc.evidence.software import Versions
from hangdoc.formatting import fold_ranks, name_ranks

# Parts of names of options that are each rank's own.
OWN = re.compile(
    r"(?:^|_)(?:\w*rank|id|idx|index|device|gpus?|cuda|ports?|addr|address|hosts?|hostname|master|ip|node|seed|logs?|logdir"
    r"|logging|verbose|quiet|debug|out|output|dir|directory|folder|path|root|file|data|shards?|trace|profile|profiler|tensorboard"
    r"|wandb|stage|role|worker|workers|name|tag|run)(?:_|$)"
)
# Parts of names of options that say how often, with what, or in which form a step is made.
STEERS = re.compile(
    r"(?:^|_)(?:accum\w*|steps?|iters?|iterations?|epochs?|batch\w*|precision|d?type|bf16|fp16|amp|tf32|config|conf|layers?|hidden"
    r"|dim|width|depth|seq\w*|vocab\w*|model|world|nnodes|nproc|parallel|tp|pp|dp|zero\w*|bucket\w*|freq\w*|interval|every|clip\w*"
    r"|ema|freeze\w*|unused|sync\w*)(?:_|$)"
)
VARIABLES = re.compile(
    r"ACCELERATE_(?!PROCESS|TORCH_DEVICE)\w+|DEEPSPEED_\w+|FSDP_\w+|PL_TORCH\w*|PYTORCH_JIT|TORCHDYNAMO_DISABLE|NVIDIA_TF32_OVERRIDE"
    r"|(?:ATEN|ONEDNN|DNNL|MKL)_\w*(?:CAPABILITY|ISA|CBWR|MATH)\w*|\w*(?:PRECISION|DTYPE|BF16|FP16|TF32)\w*"
    r"|NCCL_(?:ALGO|PROTO|NVLS_ENABLE|COLLNET_ENABLE|P2P_DISABLE|SHM_DISABLE|NET|CROSS_NIC|MIN_NCHANNELS|MAX_NCHANNELS)"
)
OPTION = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
LONGEST = 60  # characters of a value

Values = Mapping[Key, str]


@dataclass(frozen=True, slots=True)
class SettingsFacts:
    """What one rank was told against the others; None: they agree, or it was not seen on all of them."""

    odd: bool | None = None  # it was told otherwise than most
    parted: bool | None = None  # the ranks divide as their settings do


@dataclass(frozen=True, slots=True)
class SettingsJob:
    """What the ranks do not agree on: "--accum = 2 on ranks 0-1, 3 on rank 2", what tells most first."""

    lines: tuple[str, ...] = ()
    sizes: bool = False  # they do not agree how many they are
    versions: bool = False
    options: bool = False  # options or variables, by which the ranks divide


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that is not the same on all ranks."""

    name: str
    values: Values
    kind: str  # size | version | option | variable
    odd: frozenset[Key]  # the ranks that were told otherwise than most


@dataclass(slots=True)
class SettingsAnalysis:
    name: str = "settings"
    order: int = 44  # before startup, which asks whether they agree how many they are
    rank_facts: type | None = SettingsFacts
    job_facts: type | None = SettingsJob

    def derive(self, case: Case) -> tuple[dict[Key, SettingsFacts], SettingsJob]:
        facts = dict.fromkeys(case.ranks, SettingsFacts())
        alive = [key for key in case.ranks if case.ranks[key].alive is not False]
        counted = [*_sizes(case, alive), *_versions(case, alive)]
        telling = [one for one in (*_options(case, alive), *_variables(case, alive)) if _divides(case, one)]
        told = [*counted, *telling]
        if told:
            parted = bool(telling) or any(_divides(case, one) for one in counted)
            facts.update({key: SettingsFacts(key in told[0].odd, parted) for key in alive})
        kinds = {one.kind for one in told}
        return facts, SettingsJob(
            tuple(_line(case, one) for one in told), "size" in kinds, "version" in kinds, bool(telling)
        )


# --- what is compared -----------------------------------------------------------------------------


def _sizes(case: Case, keys: Sequence[Key]) -> Iterator[Difference]:
    """How many ranks, or hosts, there are to be."""
    sizes = {key: case.ranks[key].target.world_size for key in keys if case.ranks[key].target.role == "rank"}
    yield from _difference(
        "world size", {key: None if size is None else str(size) for key, size in sizes.items()}, "size"
    )
    launches = {key: launch for key in keys if (launch := launch_in(case, key))}
    yield from _difference("--nnodes", {key: one.nodes for key, one in launches.items()}, "size")


def _versions(case: Case, keys: Sequence[Key]) -> Iterator[Difference]:
    records = {key: case.record(key, "versions") for key in keys}
    for name in ("torch", "nccl", "python") if any(records.values()) else ():
        values = {key: getattr(one, name) if isinstance(one, Versions) else None for key, one in records.items()}
        yield from _difference(f"version of {name}", values, "version")


def _options(case: Case, keys: Sequence[Key]) -> Iterator[Difference]:
    commands = {key: one.command for key in keys if isinstance(one := case.record(key, "cpu"), Process)}
    given = {command: options(command) for command in set(commands.values())}
    told = {key: given.get(commands.get(key, ()), {}) for key in keys}
    for name in sorted({name for every in told.values() for name in every}):
        plain = name.lower().replace("-", "_").replace(".", "_")
        if OWN.search(plain) and not re.fullmatch(r"(?:world|nnodes|nproc)\w*", plain):
            continue
        if STEERS.search(plain) or _is_used(case, keys, plain):
            yield from _difference(
                f"--{name}", {key: every.get(name, "not given") for key, every in told.items()}, "option"
            )


def _variables(case: Case, keys: Sequence[Key]) -> Iterator[Difference]:
    told = {key: one.variables if isinstance(one := case.record(key, "environ"), Environ) else None for key in keys}
    if not told or any(one is None for one in told.values()):
        return
    every = [one or {} for one in told.values()]
    for name in sorted(filter(VARIABLES.fullmatch, set().union(*every))):
        values = [one.get(name, "not set") for one in every]
        if len(set(values)) > 1:
            yield from _difference(name, dict(zip(told, values, strict=True)), "variable")


def _difference(name: str, values: Mapping[Key, str | None], kind: str) -> Iterator[Difference]:
    """The difference, where every rank's value is known and they are not all alike, nor each another by design."""
    known = {key: value[:LONGEST] for key, value in values.items() if value is not None}
    different = len(set(known.values()))
    if len(known) == len(values) > 1 < different and (different == 2 or different < len(known)):
        yield Difference(name, known, kind, _odd(known))


def _odd(values: Values) -> frozenset[Key]:
    """Those told otherwise than most; of two equal parts the one without the first rank."""
    often = Counter(values.values())
    first = next(iter(values.values()))
    most = max(often, key=lambda value: (often[value], value == first))
    return frozenset(key for key, value in values.items() if value != most)


def options(command: Sequence[str]) -> dict[str, str]:
    """The options of a command line, behind the script where one is named: name to value, "given" for a switch."""
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
    """The loops and conditions around the lines where ranks stand name the option."""
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
    """The ranks stand at different places as they were told different things, or hand over other tensors so."""
    position, payload = case.rank_facts["position"], case.rank_facts["payload"]
    return _parts(one, lambda key: position[key].side) or _parts(one, lambda key: payload[key].differs)


def _parts(one: Difference, where: Callable[[Key], object]) -> bool:
    inside, outside = ({where(key) for key in one.values if (key in one.odd) is part} for part in (True, False))
    return not inside & outside and None not in inside | outside


def _line(case: Case, one: Difference) -> str:
    by_value: dict[str, list[Key]] = {}
    for key, value in one.values.items():
        by_value.setdefault(value, []).append(key)
    parts = [f"{value} on {_who(case, keys)}" for value, keys in by_value.items()]
    return f"{one.name} = {', '.join(parts)}"


def _who(case: Case, keys: Sequence[Key]) -> str:
    ranks = [case.ranks[key].target.rank for key in keys]
    numbers = [rank for rank in ranks if rank is not None]
    if len(numbers) == len(ranks):
        return name_ranks(numbers)
    nodes = [launch.node for key in keys if (launch := launch_in(case, key)) and launch.node is not None]
    if len(nodes) == len(keys):
        return f"node{'s' * (len(nodes) > 1)} {fold_ranks(nodes)}"
    return f"pid{'s' * (len(keys) > 1)} {', '.join(str(pid) for _, pid in keys)}"


ANALYSIS = SettingsAnalysis()
