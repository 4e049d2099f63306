"""How a minority of the ranks was started or configured differently, whatever it means.

Compared are scripts, versions, command lines, configuration objects, the environment and the working folder. A value
that is distinct on each rank is so by design, and so are those in `by_design`. No rule reads this, unlike
`config_skew`: it is shown where no rule explains a stall.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.divergence import DivergenceFacts
from hangdoc.analysis.startup.by_design import differs_by_design
from hangdoc.analysis.startup.config_skew import MAX_VALUE, OPTION, Difference, format_difference, options
from hangdoc.evidence import Environ, Process, Stacks, Target, Variable
from hangdoc.evidence.software import Configuration, Versions

MAX_LINES = 5
MAX_GROUPS = 4  # distinct values of a difference; more are no two ways to start a job
# What is compared, and its place in the order: the nearer to the code, the more it explains.
KINDS = ("script", "version", "option", "configuration", "constant", "variable", "place")
NAMED = frozenset({"option", "configuration", "constant", "variable"})  # whose names users and tools choose
ABSENT = {"version": "none", "option": "not given", "variable": "not set"}
_NUMBER = re.compile(r"\d+")
_CONSTANT = re.compile(r"[A-Z][A-Z0-9_]+")
_SCALARS = frozenset({"int", "float", "bool", "str"})


def differences(case: Case) -> tuple[str, ...]:
    """Differences between the ranks, those of a minority first: "--accum = 2 on ranks 0-2, 3 on rank 3"."""
    alive = [key for key, one in case.ranks.items() if one.alive is not False and one.target.role == "rank"]
    if len(alive) < 2:
        return ()
    parted = {key for key in alive if case.facts(DivergenceFacts)[key].outlier}
    found = sorted(_differences(case, alive), key=lambda one: _order(one, parted, len(alive)))
    once = {_same(one): one for one in reversed(found)}
    shown = [one for one in found if once[_same(one)] is one][:MAX_LINES]
    return tuple(format_difference(case, one) for one in shown)


def _order(one: Difference, parted: set[Key], ranks: int) -> tuple[bool, bool, int, int, str]:
    """Those of a minority first, then those of the ranks that left the others' path."""
    tie = 2 * len(one.outlier) >= ranks
    return tie, one.outlier != parted, KINDS.index(one.kind), len(one.outlier), one.name


def _differences(case: Case, keys: Sequence[Key]) -> Iterator[Difference]:
    settings = {key: dict(_settings(case, key)) for key in keys}
    names = dict.fromkeys(name for each in settings.values() for name in each)
    launching = _launching(case, keys)
    kinds = [{kind for kind, _ in each} for each in settings.values()]
    complete = kinds[0].intersection(*kinds)  # seen on every rank
    for kind, name in names:
        if (kind in NAMED and differs_by_design(name)) or kind not in complete:
            continue
        absent = ABSENT.get(kind)
        values = {key: settings[key].get((kind, name), absent) for key in keys}
        known = {key: value for key, value in values.items() if value is not None}
        if kind == "variable" and {key for key, value in values.items() if value == absent} <= launching:
            known = {key: value for key, value in known.items() if key not in launching}
        if len(known) >= len(keys) - len(launching) and (outlier := _minority(case, known)):
            yield Difference(name, {key: value[:MAX_VALUE] for key, value in known.items()}, kind, outlier)


def _launching(case: Case, keys: Sequence[Key]) -> frozenset[Key]:
    """Ranks that started other ranks, as Lightning does: only their children have the variables of a launcher."""
    processes = {key: one for key in keys if isinstance(one := case.record(key, "cpu"), Process)}
    parents = {(host, processes[host, pid].ppid) for host, pid in processes}
    return frozenset(key for key in keys if key in parents)


def _minority(case: Case, values: Mapping[Key, str]) -> frozenset[Key]:
    """The ranks without the most common value; empty: values are equal, or distinct by design."""
    often = Counter(values.values())
    if not 1 < len(often) <= MAX_GROUPS:
        return frozenset()
    first = next(iter(values.values()))
    most = max(often, key=lambda value: (often[value], value == first))
    if 2 * often[most] < len(values) or len({_own_masked(case.ranks[key].target, v) for key, v in values.items()}) == 1:
        return frozenset()
    return frozenset(key for key, value in values.items() if value != most)


def _own_masked(target: Target, value: str) -> str:
    """The value without the rank's own numbers and host: `cuda:1` and `out/rank1` are the same setting on each rank."""
    own = {str(number) for number in (target.rank, target.local_rank, target.pid) if number is not None}
    text = _NUMBER.sub(lambda found: "#" if (found[0].lstrip("0") or "0") in own else found[0], value)
    return text.replace(target.host, "#") if target.host else text


# --- what is compared -----------------------------------------------------------------------------


def _settings(case: Case, key: Key) -> Iterator[tuple[tuple[str, str], str]]:
    """The settings of one rank: (kind, name), value."""
    process, versions = case.record(key, "cpu"), case.record(key, "versions")
    environ, stacks = case.record(key, "environ"), case.record(key, "stacks")
    configuration = case.record(key, "configuration")
    if isinstance(versions, Versions):
        for name, digest in versions.scripts.items():
            yield ("script", f"content of {name}"), digest
        numbers = {"torch": versions.torch, "nccl": versions.nccl, "python": versions.python, **versions.packages}
        for name, number in numbers.items():
            yield ("version", f"version of {name}"), number or "none"
    if isinstance(process, Process):
        for name, value in _command(process.command, process.cwd or ""):
            yield ("option", name), value
        yield ("place", "working folder"), process.cwd or "unknown"
        yield ("place", "interpreter"), process.executable or "unknown"
    if isinstance(configuration, Configuration):
        for name, value in configuration.values.items():
            yield ("configuration", name), value
    if isinstance(stacks, Stacks):
        for variable in stacks.globals or ():
            if _is_constant(variable):
                yield ("constant", variable.name), variable.text
    if isinstance(environ, Environ):
        for name, value in environ.variables.items():
            yield ("variable", name), value


def _command(command: Sequence[str], folder: str) -> Iterator[tuple[str, str]]:
    """The script, its options and its `key=value` words."""
    words = command[1:]
    at = next((at for at, word in enumerate(words) if not word.startswith("-")), len(words))
    if at < len(words):
        yield "script", os.path.normpath(os.path.join(folder, words[at]))
    for name, value in options(command).items():
        yield f"--{name}", value
    for word in words[at + 1 :]:
        name, equals, value = word.partition("=")
        if equals and not OPTION.fullmatch(word) and name.strip("+~").replace(".", "_").isidentifier():  # Hydra
            yield name.strip("+~"), value


def _is_constant(variable: Variable) -> bool:
    """True for a setting by convention: `BATCH_SIZE = 64` at the top of a script."""
    return variable.kind in _SCALARS and _CONSTANT.fullmatch(variable.name) is not None


def _same(one: Difference) -> tuple[str, frozenset[Key]]:
    """Equal for an option and the configuration value that it sets: `--lr`, `args.lr`."""
    name = re.sub(r"[^a-z0-9]", "", one.name.rpartition(".")[2].lower()) if one.kind in NAMED else one.name
    return name, one.outlier
