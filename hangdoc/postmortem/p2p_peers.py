"""With whom the sends and receives on a stack are, where its own source tells: a traceback has no variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from hangdoc.analysis.ranks.call_path import is_library
from hangdoc.evidence import Frame, Stack, Stacks, Variable
from hangdoc.introspect.p2p_peers import ARGUMENTS

C10D = "torch/distributed/distributed_c10d.py"


class Call(NamedTuple):
    """A send or receive on a stack: what is called, and from where in the user's own code."""

    file: str
    line: int
    function: str


def call_of(stack: Stack) -> tuple[int, Call] | None:
    """The innermost one of which no variable is known, and the index of its frame."""
    for i, frame in enumerate(stack.frames):
        if frame.file.endswith(C10D) and frame.function in ARGUMENTS and not frame.variables:
            own = next((one for one in stack.frames[i + 1 :] if not is_library(one.file)), None)
            if own is not None:
                return i, Call(own.file, own.line or 0, frame.function)
    return None


def with_partners(stacks: Stacks, partners: Mapping[Call, int]) -> Stacks:
    """The stacks of a rank, with the other rank as a variable of each send and receive of which it is known."""
    threads = tuple(_told(stack, partners) for stack in stacks.threads)
    return stacks if threads == stacks.threads else replace(stacks, threads=threads)


def _told(stack: Stack, partners: Mapping[Call, int]) -> Stack:
    found = call_of(stack)
    if found is None or found[1] not in partners:
        return stack
    frames: list[Frame] = list(stack.frames)
    i, call = found
    peer = partners[call]
    told = Variable(ARGUMENTS[call.function], str(peer), argument=True, number=float(peer), kind="int")
    frames[i] = replace(frames[i], variables=(told,))
    return replace(stack, frames=tuple(frames))
