"""What blocks a rank, and what goes on for it although its stack does not change, as other analyses found out."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from hangdoc.analysis import Case, Key
from hangdoc.analysis.collectives.fr_diagnosis import DumpFacts
from hangdoc.analysis.compute.recompilation import RecompilationFacts
from hangdoc.analysis.compute.straggler import StragglerFacts
from hangdoc.analysis.data.dataloading import DataLoadingFacts
from hangdoc.analysis.data.prompts import PromptFacts
from hangdoc.analysis.data.storage import StorageFacts
from hangdoc.analysis.data.wait_chains import ChainFacts
from hangdoc.analysis.data.workers import WorkerFacts
from hangdoc.analysis.locks.gil import GilFacts
from hangdoc.analysis.locks.lock_files import LockFileFacts
from hangdoc.analysis.locks.mutexes import MutexFacts
from hangdoc.analysis.logs.logs import LogsFacts
from hangdoc.analysis.startup.gloo_mesh import MeshFacts
from hangdoc.analysis.startup.startup import StartupFacts


class MayBlock(Protocol):
    """Facts that may block a rank."""

    @property
    def stuck(self) -> bool | None:
        """The rank cannot go on by itself, whatever its stack shows."""


class MayAdvance(Protocol):
    """Facts that may show that a rank advances."""

    @property
    def advancing(self) -> bool | None:
        """The stack does not change, but work goes on for the rank: a child process, a growing file."""


# Analysis `aftermath` presumes more ranks to be stuck, from these.
BLOCKING: tuple[type[MayBlock], ...] = (
    ChainFacts,
    DumpFacts,
    GilFacts,
    WorkerFacts,
    LockFileFacts,
    LogsFacts,
    MeshFacts,
    MutexFacts,
    PromptFacts,
    StartupFacts,
    StorageFacts,
)
ADVANCING: tuple[type[MayAdvance], ...] = (
    DataLoadingFacts,
    DumpFacts,
    WorkerFacts,
    LockFileFacts,
    RecompilationFacts,
    StorageFacts,
    StragglerFacts,
)


def stuck_ranks(case: Case) -> Collection[Key]:
    """The ranks that are seen to be stuck."""
    return {key for kind in BLOCKING for key, facts in case.facts(kind).items() if facts.stuck is True}


def advancing_ranks(case: Case) -> Collection[Key]:
    """The ranks for which work goes on."""
    return {key for kind in ADVANCING for key, facts in case.facts(kind).items() if facts.advancing is True}
