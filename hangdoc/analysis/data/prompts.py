"""Analysis `prompts`: the rank waits for a person to type.

A debugger, an interpreter or a password prompt shows in the frames. For any other prompt the kernel has to show that
the thread waits for a terminal: what comes through a pipe on standard input may be data or requests of a program. Once
the job has ended, the last line of a rank has to do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hangdoc.analysis import Case, Detector, Key
from hangdoc.analysis.data.workers import WorkerFacts
from hangdoc.analysis.ranks.judged_thread import judged_thread
from hangdoc.analysis.ranks.phases import WAITING
from hangdoc.analysis.ranks.progress import ProgressFacts
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.analysis.thresholds import BUSY_CORES
from hangdoc.evidence import FileCall, Io, Process

# Operations of the frames that wait for a person, whatever their input is.
PROMPTS = {
    "debugger prompt": "debugger",
    "debugger client": "debugger client",
    "interpreter prompt": "interpreter",
    "password prompt": "no echo",
}
TERMINAL = re.compile(r"/dev/(pts/\d+|tty\w*|console|hvc\d+)$")
CALLS = frozenset({"read", "poll"})


@dataclass(frozen=True, slots=True)
class PromptFacts:
    """The prompt at which one rank waits. None: it waits at none, or was not seen."""

    kind: str | None = None  # debugger | debugger client | interpreter | no echo | input | read
    terminal: str | None = None  # the terminal that the kernel shows it waits for: "/dev/pts/3"
    pid: int | None = None  # process at the prompt: the rank, or a helper that it waits for
    helper: str | None = None  # command name of that helper
    stuck: bool | None = None  # it is at a prompt


UNSEEN = PromptFacts()


class PromptDetector(Detector[PromptFacts, None]):
    rank_facts = PromptFacts
    seen_by = ("stacks", "io", "aftermath")

    def derive(self, case: Case) -> tuple[dict[Key, PromptFacts], None]:
        return {key: _facts(case, key) for key in case.ranks}, None


def _facts(case: Case, key: Key) -> PromptFacts:
    stack = case.facts(StackFacts)[key]
    if stack.phase in (*WAITING, "stopped", "exited"):
        return UNSEEN
    io, shown = case.record(key, "io"), PROMPTS.get(stack.op or "")
    reads = [call for call in io.calls if _for_terminal(call)] if isinstance(io, Io) else []
    own = [call for call in reads if call.pid == key[1]]
    if shown is not None:  # the thread that edits the line may be another
        return PromptFacts(shown, own[0].path if own else None, key[1], stuck=True)
    if (case.facts(ProgressFacts)[key].cpu_share or 0.0) >= BUSY_CORES:
        return UNSEEN  # another thread computes, and this one may only take commands for it
    thread = judged_thread(case, key)
    tid = thread.stack.tid if thread is not None else key[1]
    if io is None and stack.op == "input" and stack.leaf == stack.site:
        return PromptFacts("input", None, key[1], stuck=True)
    call = next((call for call in own if call.tid == tid), None)
    if call is not None:
        return PromptFacts("input" if stack.op == "input" else "read", call.path, key[1], stuck=True)
    workers = case.facts(WorkerFacts)[key]
    call = next((call for call in reads if call.pid != key[1]), None)
    if call is None or not workers.waits:
        return UNSEEN
    return PromptFacts("read", call.path, call.pid, _name(case, key, call.pid), stuck=True)


def _for_terminal(call: FileCall) -> bool:
    return call.call in CALLS and bool(TERMINAL.match(call.path))


def _name(case: Case, key: Key, pid: int) -> str | None:
    process = case.record(key, "cpu")
    children = process.children if isinstance(process, Process) else ()
    return next((child.comm for child in children if child.pid == pid), None)


ANALYSIS = PromptDetector()
