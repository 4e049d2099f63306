"""Samples of a rank's model parameters, read from its memory (record of probe `parameters`)."""

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


class Parameters(Record, frozen=True):
    """Parameters of the models that a rank trains; none: no model was found."""

    parameters: tuple[Parameter, ...] = ()
    wrapper: str | None = None  # class that keeps replicas equal: DistributedDataParallel
    group: int | None = None  # address of the wrapper's process group
    sharded: str | None = None  # class that splits parameters over ranks: FullyShardedDataParallel, DTensor
