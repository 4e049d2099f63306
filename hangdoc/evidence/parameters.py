"""The parameters of a rank's models and their gradients, read from its memory (probes `parameters`, `gradients`)."""

from __future__ import annotations

from hangdoc.evidence.record import Record


class Value(Record, frozen=True):
    """What a parameter held at one instant."""

    version: int  # torch's count of its in-place changes: grows by the same number in each step
    digest: str  # of some of its bytes; "" if they are all equal, as in a freshly initialised bias


class Parameter(Record, frozen=True):
    """One parameter of a model; the same few are read in every look."""

    name: str  # "model.layers.0.weight": a variable, then names of modules
    shape: tuple[int, ...]
    dtype: str
    device: str
    trainable: bool  # requires_grad
    values: tuple[Value, ...] = ()  # distinct ones of this look, oldest first; empty: not readable, as on a GPU
    gradient: str = ""  # digest of its gradient; "" if there is none, or its bytes are all equal
    nonfinite: str = ""  # nan | inf: found among the sampled elements
    gradients: tuple[str, ...] = ()  # other digests of it in this look, where no wrapper averages it


class Parameters(Record, frozen=True):
    """Parameters of the models that a rank trains (record of probe `parameters`); none: no model was found."""

    parameters: tuple[Parameter, ...] = ()
    wrapper: str | None = None  # class that keeps replicas equal: DistributedDataParallel
    group: int | None = None  # address of the wrapper's process group
    sharded: str | None = None  # class that splits parameters over ranks: FullyShardedDataParallel, DTensor
    unregistered: tuple[str, ...] = ()  # trainable ones that the wrapper has not registered: "model.module.head.weight"
    size: int | None = None  # bytes of all trainable parameters


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
