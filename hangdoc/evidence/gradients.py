"""Gradients of the models that DDP replicates (probe `gradients`)."""

from __future__ import annotations

from hangdoc.evidence.record import Record


class ReplicatedModel(Record, frozen=True):
    """A DistributedDataParallel model of a rank, and which of its parameters have a gradient at this moment."""

    name: str  # the variable that leads to it: "model", "trainer"
    expected: int  # parameters whose gradients DDP reduces, of those that were read
    missing: int  # of these, parameters without a gradient
    without: tuple[str, ...] = ()  # names of the first of them: "experts.3.weight"
    find_unused: bool | None = None  # its find_unused_parameters
    static_graph: bool | None = None


class Gradients(Record, frozen=True):
    """The replicated models of a rank (record of probe `gradients`); none: its variables lead to no such model."""

    models: tuple[ReplicatedModel, ...] = ()
