"""How processes of a text are related, as it says: which have the same stack, and which is a child of which."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

MAX_PROCESSES = 4096  # of which a relation is kept

# `51389 and 51390 print the same as 51388`: processes, where the list of them is not known to be one of ranks.
_SAME_PIDS = re.compile(
    r"(?:^|[.;:(] |\bpids? )(?P<these>\d{3,9}(?:(?:, ?(?:and )?| and | ?& )\d{3,9}){0,64}):?(?: [a-z]{1,12}){0,4}?"
    r" (?:(?:the )?(?:(?:same|identical)(?: \w{1,12})?|just) (?:as|to|like)|like) (?:pid )?(?P<one>\d{3,9})\b",
    re.IGNORECASE,
)
# Below the heading of a process: `same as 30744`
_SAME_AS_PID = re.compile(
    r"\W{0,4}(?:the )?(?:same|identical)(?: (?:stack|picture|trace|frames|place))? (?:as|to) (?:pid )?(\d{3,9})\W{0,4}",
    re.IGNORECASE,
)
# In a comment behind the command of one process: `(rank 0; 70312 and 70313 are the same)`
_ALIKE_PIDS = re.compile(
    r"(?<![\w.])(\d{3,9}(?:(?:, ?(?:and )?| and | ?& )\d{3,9}){0,64})(?: [a-z]{1,12}){0,3}? (?:the )?"
    r"(?:same|identical|alike)\b",
    re.IGNORECASE,
)
# `children of 70314: 70690 70691 70692`
_CHILDREN = re.compile(
    r"\bchild(?:ren| processes)? of (?:pid )?(?P<parent>\d{3,9})\b[^\d\n]{1,20}"
    r"(?P<pids>\d{3,9}(?:[ ,]{1,3}\d{3,9}){0,256})\b",
    re.IGNORECASE,
)
# `pid 3388, child of 3071 (pt_data_worker)`
_CHILD_OF = re.compile(
    r"\s{0,8}(?:pid )?(?P<pid>\d{3,9}),? (?:is )?(?:a )?child of (?:pid )?(?P<parent>\d{3,9})\b.{0,60}", re.IGNORECASE
)
# `one of the children of 3302 (the other 3 wait for work):`: a dump of a process without a PID follows
_SOME_CHILD_OF = re.compile(
    r"\W{0,8}(?:(?:one|the (?:first|last|other|second)|another|a) (?:of (?:the |its )?)?){0,2}"
    r"(?:child(?:ren)?|workers?|subprocess(?:es)?)(?: process(?:es)?)? of (?:pid )?(?P<parent>\d{3,9})\b"
    r"[^\d\n][^\n]{0,100}:\s*",
    re.IGNORECASE,
)
# Commands that list the children of a process, and what they print: a PID, perhaps with more behind it.
_CHILDREN_OF = re.compile(r"\b(?:pgrep\b.{0,120}? -P|ps\b.{0,120}? --ppid)[ =]?(\d{1,9})\b")
_CHILD = re.compile(r"\s{0,8}(\d{1,9})(?:\s.*)?")
PID_OPTION = re.compile(r"(?:^|\s)(?:-p|--pid)[ =]?(\d{1,9})(?=\s|$)")  # of py-spy, gdb, strace


@dataclass(slots=True)
class ProcessRelations:
    """Takes the lines of a text, and the commands at its prompts, in order."""

    twins: dict[int, int] = field(default_factory=dict)  # PID -> PID whose stack it has
    parents: dict[int, int] = field(default_factory=dict)  # PID -> PID of its parent
    child_of: int | None = None  # PID of the parent of the process taken last, whose own PID is not stated
    _next_child_of: int | None = None  # the dump that follows is that of a child of this PID
    _listing: int | None = None  # the last command lists the children of this PID

    def ask(self, command: str, comment: str) -> None:
        """A command at a prompt; `comment`: what is behind it."""
        listed = _CHILDREN_OF.search(command)
        self._listing = int(listed[1]) if listed else None
        if (alike := _ALIKE_PIDS.search(comment)) and (own := PID_OPTION.search(command)):
            self._add_twins(alike[1], int(own[1]))

    def lists_child(self, text: str) -> bool:
        """True for a line of the output of a command that lists the children of a process."""
        child = _CHILD.fullmatch(text) if self._listing is not None else None
        if child is None or self._listing is None:
            return False
        self._add_children((child[1],), self._listing)
        return True

    def child_in(self, text: str) -> int | None:
        """The PID in a heading such as `pid 3388, child of 3071`."""
        found = _CHILD_OF.fullmatch(text)
        if found is None:
            return None
        self._add_children((found["pid"],), int(found["parent"]))
        return int(found["pid"])

    def announces_child(self, text: str) -> bool:
        """True for the heading of a dump of some child of a process."""
        found = _SOME_CHILD_OF.fullmatch(text)
        if found:
            self._next_child_of = int(found["parent"])
        return found is not None

    def observe(self, text: str) -> bool:
        """True for a line about processes that needs no dump below it."""
        if children := _CHILDREN.search(text):
            self._add_children(re.findall(r"\d+", children["pids"]), int(children["parent"]))
        elif alike := _SAME_PIDS.search(text):
            self._add_twins(alike["these"], int(alike["one"]))
        else:
            return False
        return True

    def makes_twin(self, pid: int, text: str) -> bool:
        """True if the line below the heading of a process says that its stack is that of another one."""
        found = _SAME_AS_PID.fullmatch(text)
        if found:
            self._add_twins(str(pid), int(found[1]))
        return found is not None

    def parent_of(self, pid: int | None) -> int | None:
        """The PID of the parent of the process that was taken last."""
        return self.child_of if pid is None else self.parents.get(pid, self.child_of)

    def take(self, pid: int | None) -> None:
        """A dump begins, of this process; None: its PID is not stated."""
        self.child_of, self._next_child_of = self._next_child_of if pid is None else None, None

    def _add_children(self, pids: Iterable[str], parent: int) -> None:
        for pid in islice(pids, MAX_PROCESSES - len(self.parents)):
            self.parents[int(pid)] = parent

    def _add_twins(self, pids: str, one: int) -> None:
        for pid in re.findall(r"\d+", pids)[: MAX_PROCESSES - len(self.twins)]:
            self.twins.setdefault(int(pid), one)
