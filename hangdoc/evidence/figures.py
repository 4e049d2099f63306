"""Figures that ranks, GPUs or hosts have in a text: times of a step and its parts, rates, scores, checksums, norms."""

from __future__ import annotations

from collections.abc import Mapping

from hangdoc.evidence.record import Record


class Figure(Record, frozen=True):
    """One value of one owner."""

    kind: str  # id in postmortem/readers/_logs/figure_kinds.yaml: work, wait, rate, state, ...
    name: str  # as the text has it, in lower case: "forward"
    of: str  # kind of owner: rank, gpu, host, replica; "": the text does not say
    owner: str  # number or name
    value: str  # seconds for times, else the number; a checksum as it is
    exact: bool = False  # a checksum, not a number that is rounded
    timed: bool = False  # the value is in seconds
    step: int | None = None
    line: int = 0  # from 1
    count: int = 1  # steps of which it is the mean; 0: the text does not say


class Figures(Record, frozen=True):
    """The figures in a text, in its order (record `figures`)."""

    values: tuple[Figure, ...]
    source: str
    index_is_rank: bool = False  # the text states that the number of a GPU is its rank
    ordinal_is_rank: bool = False  # the same of the number at the end of a pod's name
    staged: bool = False  # the text says that the ranks are stages of a pipeline
    sharded: bool = False  # the text says that ranks hold parts of the model
    ranks: Mapping[str, int] = {}  # GPU, as owner of a figure -> its rank, by where the text says that the ranks run
