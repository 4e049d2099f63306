"""Queues from which a loop in user code takes its batches, and the threads of the rank that fill them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hangdoc.analysis import Case, Key
from hangdoc.analysis.data.workers import name_of, user_line
from hangdoc.analysis.ranks.call_path import FOR, CallPath, Step, per_path, thread_in
from hangdoc.analysis.ranks.progress import looks_at
from hangdoc.evidence import Source, Stacks

GET = re.compile(r"(^|/)(queue|multiprocess(ing)?/queues)\.py:get$")  # CPython's Lib, and the package multiprocess
# In these files a thread waits for work, for room in a queue, or for another thread.
_WAITS = re.compile(r"(^|/)(queue|threading|selectors|socketserver|multiprocess(ing)?/\w+|concurrent/futures/\w+)\.py$")


@per_path
def takes_batch(path: CallPath) -> bool:
    """The thread waits in a queue for the next item of a `for` loop in user code."""
    got = next((depth for depth, step in enumerate(path.steps) if GET.search(name_of(step))), 0)
    return any(_is_at_header(path.steps[depth]) for depth in path.own if depth < got)


def _is_at_header(step: Step) -> bool:
    loops = step.place.loops if step.place else ()
    return any(loop.first == step.line and FOR.match(loop.header) for loop in loops)


def filled_at(case: Case, key: Key) -> Iterator[Step]:
    """User code in which other threads of the rank were seen at work while its loop waited for a batch."""
    waiting = {look.at_s for look in looks_at(case, key) if takes_batch(look.path)}
    for shot, rank in case.rounds(key) if waiting else ():
        stacks, source = rank.records.get("stacks"), rank.records.get("source")
        if shot.at_s not in waiting or not isinstance(stacks, Stacks):
            continue
        for stack in stacks.threads:
            path = thread_in(case, stack, stacks, source if isinstance(source, Source) else None).path
            step = user_line(path.steps)
            if step is not None and not takes_batch(path) and not _WAITS.search(path.steps[-1].file):
                yield step
