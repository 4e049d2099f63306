"""Call path of a thread, and apart from it the variables of its frames.

A case interns call paths: equal paths are one object, compared and hashed by identity. Facts of a path alone are
derived once a path, whatever the number of ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, wraps
from operator import attrgetter
from typing import Any, TypeVar, overload

from hangdoc.analysis import Case, Key
from hangdoc.evidence import Frame, Place, Source, Stack, Stacks, Variable

ROOT_FUNCTIONS = ("<module>",)
LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/torchinductor_")
# Frameworks that often run from a checkout, and libraries whose folder a dump leaves out, by their own subfolders.
FRAMEWORKS = re.compile(
    r"(?:^|/)(?:"
    r"megatron/(?:core|training|legacy|inference|post_training|energon|bridge)"
    r"|deepspeed/(?:runtime|comm|utils|accelerator|inference|moe|ops|pipe|sequence|checkpoint|launcher|zero)"
    r"|(?:colossalai|fairscale|nemo|llmfoundry|fairseq)/(?!examples?/|scripts?/)\w+/"
    r"|vllm/(?:engine|executor|worker|v1|distributed|model_executor|entrypoints|attention|utils|core|compilation|lora)"
    r"|sglang/(?:srt|lang|launch)|verl/(?:workers|trainer|single_controller|utils|models|third_party|experimental)"
    r"|(?:pytorch_)?lightning/(?:pytorch|fabric|trainer|strategies|loops|core|callbacks|utilities|accelerators|plugins)"
    r"|(?:lightning_fabric|torchtitan|torchtune|torchforge|trl|peft|accelerate|huggingface_hub|safetensors)/(?!examples?/|scripts?/|train|run|main)\w+"
    r"|transformers/(?:trainer\w*\.py|modeling_\w+\.py|models|generation|integrations|data|utils|pipelines)"
    r"|(?:transformer_engine|flash_attn|apex|xformers|bitsandbytes|torchrec|torchft|triton|liger_kernel)/\w+"
    r"|(?:botocore|boto3|s3transfer|s3fs|gcsfs|fsspec|aiobotocore|aiohttp|httpx|httpcore|grpc|urllib3|wandb|mlflow)/\w+"
    r"|requests/(?:adapters|api|sessions|models)\.py|filelock/_(?:\w+/)*\w+\.py|webdataset/\w+|nvidia/dali/"
    r"|datasets/(?:arrow_|builder|load|iterable_dataset|formatting/|packaged_modules/|utils/)"
    r")"
)

Frames = tuple[tuple[str, str, int | None, bool], ...]  # innermost first: function, file, line, native
T = TypeVar("T")
_FRAME = attrgetter("function", "file", "line", "native")


class FrameVariables(Mapping[str, Variable]):
    """The variables of a frame, by name. Searched linearly: frames are many, their variables few."""

    __slots__ = ("sequence",)

    def __init__(self, sequence: Sequence[Variable] = ()) -> None:
        self.sequence = sequence

    def __getitem__(self, name: str) -> Variable:
        for variable in self.sequence:
            if variable.name == name:
                return variable
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter([variable.name for variable in self.sequence])

    def __len__(self) -> int:
        return len(self.sequence)

    def __contains__(self, name: object) -> bool:
        return any(variable.name == name for variable in self.sequence)

    def values(self) -> Sequence[Variable]:  # type: ignore[override]  # a mapping view would look each one up
        return self.sequence


@dataclass(slots=True, eq=False)  # a frozen dataclass takes longer to construct; there are many
class Step:
    """One Python frame of a call path."""

    function: str
    file: str
    line: int
    place: Place | None = None
    variables: FrameVariables = field(default_factory=FrameVariables)

    @property
    def base(self) -> str:
        """Its file, without the folder."""
        return self.file.rsplit("/", 1)[-1]

    @property
    def site(self) -> str:
        return f"{self.function} ({self.base}:{self.line})"


Steps = Sequence[Step]  # outermost first


def loops_around(steps: Iterable[Step]) -> list[tuple[str, int]]:
    """The loops that enclose these steps, by file and line, outermost first."""
    return [(step.file, loop.first) for step in steps if step.place for loop in step.place.loops]


FOR = re.compile(r"(async )?for\b")


@dataclass(frozen=True, eq=False)
class CallPath:
    """The frames of a thread without their variables, and the source around their lines."""

    frames: Frames
    source: Source | None = None
    derived: dict[Callable[[CallPath], Any], Any] = field(default_factory=dict)  # see `per_path`
    _steps: dict[tuple[int, int], Step] = field(default_factory=dict)  # by depth and identity of the variables

    @cached_property
    def indices(self) -> tuple[int, ...]:
        """The frames of its steps, outermost first: Python frames, without those that launch the user's script."""
        python = [i for i, (_, _, line, native) in enumerate(self.frames) if not native and line is not None][::-1]
        return tuple(python[next((n for n, i in enumerate(python) if not _launches(self.frames[i][1])), 0) :])

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Its steps without variables, outermost first."""
        frames, places = [self.frames[i] for i in self.indices], self.source.places if self.source else {}
        return tuple([Step(name, file, line or 0, places.get(f"{file}:{line}")) for name, file, line, _ in frames])

    @cached_property
    def python(self) -> Frames:
        """Its Python frames: equal on ranks at the same lines, whatever their native frames and sources."""
        return tuple([frame for frame in self.frames if not frame[3] and frame[2] is not None])

    @cached_property
    def lines(self) -> tuple[tuple[str, int], ...]:
        """Function and line of each step."""
        return tuple([(step.function, step.line) for step in self.steps])

    @cached_property
    def own(self) -> tuple[int, ...]:
        """Indices of the steps in user code."""
        return tuple([depth for depth, step in enumerate(self.steps) if not is_library(step.file)])

    @cached_property
    def counters(self) -> tuple[tuple[int, str], ...]:
        """Loop counters in user code: index of the step, name."""
        places = [(depth, place) for depth in self.own if (place := self.steps[depth].place)]
        return tuple([(depth, name) for depth, place in places for loop in place.loops for name in loop.counters])

    @cached_property
    def targets(self) -> frozenset[str]:
        """The counters of `for` loops in user code."""
        loops = [loop for depth in self.own if (place := self.steps[depth].place) for loop in place.loops]
        return frozenset([name for loop in loops if FOR.match(loop.header) for name in loop.counters])

    @property
    def user(self) -> Step | None:
        """The innermost step in user code, else the innermost step."""
        return self.steps[self.own[-1] if self.own else -1] if self.steps else None

    def step(self, depth: int, variables: Sequence[Variable]) -> Step:
        """A step with these variables; ranks with the same variables share one object."""
        if not variables:
            return self.steps[depth]
        at = depth, id(variables)  # the step keeps them alive
        found = self._steps.get(at)
        if found is None:
            bare = self.steps[depth]
            found = Step(bare.function, bare.file, bare.line, bare.place, FrameVariables(variables))
            self._steps[at] = found
        return found


def per_path(derive: Callable[[CallPath], T]) -> Callable[[CallPath], T]:
    """Derive a fact of a call path once a path."""

    @wraps(derive)
    def derived(path: CallPath) -> T:
        if derive not in path.derived:
            path.derived[derive] = derive(path)
        found: T = path.derived[derive]
        return found

    return derived


class Thread(Sequence[Step]):
    """A thread in one look: its call path with its variables. Steps are made on first access: most are never read."""

    __slots__ = ("_made", "module", "path", "stack")

    def __init__(self, path: CallPath, stack: Stack, module: Sequence[Variable] | None = None) -> None:
        self.path, self.stack, self.module = path, stack, module
        self._made: Steps | None = None

    def variables(self, depth: int) -> Sequence[Variable]:
        """The variables of one step."""
        return variables_of(self.stack.frames[self.path.indices[depth]], self.module)

    def is_same(self, other: Thread) -> bool:
        """True if both are on the same path, with the same objects for variables."""
        own, peer = self.stack.frames, other.stack.frames
        same = self.path is other.path and self.module is other.module
        return same and all(own[i] is peer[i] for i in self.path.indices)

    def beside(self, other: Thread) -> Iterator[tuple[Sequence[Variable], Sequence[Variable]]]:
        """For each step that is not the same object in both threads: its variables, here and there."""
        own, peer = self.stack.frames, other.stack.frames
        same_module = self.module is other.module
        for i, j in zip(self.path.indices, other.path.indices, strict=True):
            here, there = own[i], peer[j]
            if here is not there or not same_module:
                yield variables_of(here, self.module), variables_of(there, other.module)

    @property
    def steps(self) -> Steps:
        if self._made is None:
            self._made = [self.path.step(depth, self.variables(depth)) for depth in range(len(self))]
        return self._made

    @overload
    def __getitem__(self, at: int) -> Step: ...
    @overload
    def __getitem__(self, at: slice) -> Steps: ...
    def __getitem__(self, at: int | slice) -> Step | Steps:
        return self.steps[at]

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.path.indices)


def thread_in(case: Case, stack: Stack, stacks: Stacks, source: Source | None) -> Thread:
    """A thread of `stacks`, a record of the case; the call paths of a case are interned."""
    known: dict[tuple[Frames, int], CallPath] = case.once("call paths", dict)
    at = frames_of(stack), id(source.places) if source else 0  # the path keeps its source alive
    path = known.get(at)
    if path is None:
        path = known[at] = CallPath(at[0], source)
    return Thread(path, stack, stacks.globals)


def threads_of(case: Case, key: Key) -> Sequence[Thread]:
    """The threads of a rank when it was last seen; empty if its stacks were not seen."""
    known: dict[Key, Sequence[Thread]] = case.once("threads", dict)
    found = known.get(key)
    if found is None:
        stacks, source = case.record(key, "stacks"), case.record(key, "source")
        threads = stacks.threads if isinstance(stacks, Stacks) else ()
        found = known[key] = [thread_in(case, stack, stacks, source) for stack in threads]
    return found


def frames_of(stack: Stack) -> Frames:
    """The frames of a thread without their variables."""
    return tuple(map(_FRAME, stack.frames))


def variables_of(frame: Frame, module: Sequence[Variable] | None) -> Sequence[Variable]:
    """The variables of a frame; for the script's top level without any, those of `module`."""
    return frame.variables or (module if frame.function in ROOT_FUNCTIONS else None) or ()


@lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """True for torch, site-packages, the standard library, and frozen or compiled code; False for user code."""
    return any(part in file for part in LIBRARIES) or file.startswith("<") or bool(FRAMEWORKS.search(file))


@lru_cache(maxsize=4096)
def _launches(file: str) -> bool:
    """True for runpy, multiprocessing.spawn and the like: launch code above the user's script."""
    return file.startswith("<frozen runpy") or "/multiprocessing/" in file or file.endswith("runpy.py")
