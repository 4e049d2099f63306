"""py-spy dumps of one or more processes, as text or `--json`; `ray stack` has the same format.

Text of py-spy 0.3 and 0.4 (src/dump.rs): `Process PID: command`, `Python v3.11.7 (path)`, `Thread TID (idle): "name"`,
frames innermost first, each followed by `Arguments:` and `Locals:` with --locals; native frames name a shared object.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from hangdoc.evidence import Frame, Variable
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._dump_ranks import ProcessDump, process_dumps, rank_pieces
from hangdoc.postmortem.readers._elided import EarlierStacks, elision
from hangdoc.postmortem.readers._frames import (
    MAX_THREADS,
    MAX_VARIABLES,
    ThreadBuilder,
    native_frame,
    python_frame,
    stacks_record,
    variable,
)
from hangdoc.postmortem.readers._host_names import prompt_of
from hangdoc.postmortem.readers._pasted_text import OwnerHints, json_documents_with_context, text_lines

_PROCESS = re.compile(r"(Parent )?Process (\d{1,9}): (.*)")
_OF_ONE = re.compile(r"MainThread$|Thread-\d{1,9}(?: \(|$)")  # names that threading gives to one thread of a process
_PYTHON = re.compile(r"\s*Python v(\d[\w.+]*)(?: \(.*\))?\s*")
_THREAD = re.compile(r'Thread (0x[0-9A-Fa-f]{1,16}|\d{1,18})(?: \(((?:idle|active)(?:\+gil)?)\))?(?:: "(.*)")?\s*')
OPENING = re.compile(
    r"(?:Parent )?Process \d{1,9}: |Thread (?:0x[0-9A-Fa-f]{1,16}|\d{1,18}) \((?:idle|active)(?:\+gil)?\)"
)
_THREAD_LINE = re.compile(r"\bThread (?:0x[0-9A-Fa-f]{1,16}|\d{1,18}) \((?:idle|active)(?:\+gil)?\)")
_FRAME_LINE = re.compile(
    r"\([^()\n]{1,1000}:\d{1,9}\)[ \t\r]*$|\([^()\n]{1,400}\.so[.\d]{0,20}\)[ \t\r]*$", re.MULTILINE
)
_SECTION = re.compile(r"\s*(Arguments|Locals):\s*")
_VARIABLE = re.compile(r"\s*([A-Za-z_.]\w*): (.*)")
_LINE = re.compile(r"(.*):(\d{1,9})")
_NATIVE = re.compile(r"(?:\.so(?:[.\d]*)|\.(?:c|cc|cpp|cxx|h|hpp|cu|cuh|rs|pyx|S|a|inc))$")
_JSON_LIST = re.compile(rb"^[ \t]*\[\s*\{", re.MULTILINE)
MAX_JSON_BYTES = 64 * 2**20  # a dump of 1,000 threads is 5 MB
_TEXT = 600  # characters of a variable, before redaction


class PySpyReader:
    name = "py-spy dump"
    order = 20
    marks = ("(idle)", "(active)", "(active+gil)", "(idle+gil)", '"owns_gil"')
    help = "`py-spy dump --locals --nonblocking --pid PID` of every rank (add --json to keep full file names)"

    def recognises(self, source: Source) -> bool:
        head = source.head_text
        return _is_json(source.head) or (_THREAD_LINE.search(head) is not None and _FRAME_LINE.search(head) is not None)

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        found: list[ProcessDump] = list(_json_dumps(source, context)) if _is_json(source.head) else []
        if not found or _THREAD_LINE.search(source.head_text):
            found += process_dumps(text_lines(source, context), OPENING, _Parser)
        return rank_pieces(found, source, context)


class _Parser:
    """Parses one channel (`_pasted_text.ChannelParser`)."""

    def __init__(self, hints: OwnerHints) -> None:
        self.pieces: list[Piece] = []
        self._hints = hints
        self._process: ProcessRef | None = None  # None: between two dumps
        self._command = ""
        self._parent: int | None = None
        self._python: str | None = None
        self._threads: list[ThreadBuilder] = []
        self._frame: tuple[str, str] | None = None  # waits for its variables
        self._variables: list[tuple[str, list[str], bool]] | None = None
        self._section: str | None = None
        self._earlier = EarlierStacks()

    def feed(self, text: str) -> bool:
        if found := _PROCESS.match(text):
            if found[1]:
                self._parent = int(found[2])
            else:
                self.end()
                self._hints.observe_command(found[3])
                self._command, self._process = found[3][:4096], self._hints.take(int(found[2]))
            return True
        if self._process is not None and not self._threads and (mark := elision(text)) and mark.said:
            self._hints.give_back(self._process)
            self._process = None
            return False
        if (found := _PYTHON.fullmatch(text)) and self._process is not None:
            self._python = found[1]
            return True
        if found := _THREAD.fullmatch(text.strip()):
            return self._thread(found[1], found[2] or "", found[3])
        if not self._threads or not text.strip():
            return self._process is not None and not text.strip()
        if found := _SECTION.fullmatch(text):
            if self._frame is None:
                return False
            self._section = found[1]
            self._variables = self._variables if self._variables is not None else []
            return True
        return self._content(text)

    def _thread(self, tid: str, status: str, name: str | None) -> bool:
        again = name is not None and _OF_ONE.match(name) and any(thread.name == name for thread in self._threads)
        if self._process is not None and (again or (self._hints.updated and self._threads)):
            self.end()  # the header of this process was not pasted
        if self._process is None:
            self._process = self._hints.take()
        self._close()
        number = int(tid, 16 if tid.startswith("0x") else 10)
        if name == "MainThread" and self._process.pid is None and not tid.startswith("0x") and 0 < number < 2**22 + 1:
            # Linux: the main thread's TID is the PID.
            self._process = replace(self._process, rank=self._hints.rank_of(self._process, number), pid=number)
        thread = ThreadBuilder(number, name, status.endswith("+gil"), status.startswith("active"))
        if len(self._threads) < MAX_THREADS:
            self._threads.append(thread)
        return True

    def _content(self, text: str) -> bool:
        """Parse a frame, a variable, or the continuation of a multi-line variable."""
        if self._section is not None and self._variables is not None and (found := _VARIABLE.fullmatch(text)):
            if len(self._variables) < 4 * MAX_VARIABLES:
                self._variables.append((found[1], [found[2][:_TEXT]], self._section == "Arguments"))
            return True
        if parts := _frame(text):
            self._close()
            self._frame = parts
            return True
        if self._section is None and (mark := elision(text)):
            self._close()
            self._threads[-1].leave_out(mark)
            return True
        if self._section is not None and self._variables:
            if prompt_of(text):  # the next command: a value has no more lines
                self._close()
                return False
            before = self._variables[-1][1]
            if sum(map(len, before)) < _TEXT:
                before.append(text[:_TEXT])
            return True
        return False

    def _close(self) -> None:
        """Add the pending frame with its variables."""
        if self._frame is not None and self._threads:
            self._threads[-1].add(_of(*self._frame, self._variables))
        self._frame = self._variables = self._section = None

    def end(self) -> None:
        """Finish the current process; also called at the end of the text."""
        self._close()
        for thread in self._threads:
            thread.fill(self._earlier, self._process.rank if self._process else None)
        record = stacks_record(self._threads, self._python)
        if self._process is not None and record is not None:
            told = self._hints.relations.parents.get(self._process.pid) if self._process.pid is not None else None
            dump = ProcessDump(self._process, record, self._command, self._parent or told)
            self.pieces.append(Piece(self._process, "stacks", dump))
        self._process, self._command, self._parent, self._python, self._threads = None, "", None, None, []


# A heading: `rank 1 (pid 5513)`, `pid 8811, 8812 (ranks 1-2)`; a remark: `5513 same as 5511 (in generate)`
_OWNER = re.compile(
    r"\((?:pids?|(?:(?:local|global)[ _])?ranks?|hosts?|nodes?|gpus?)[ :=#]|\b(?:same|identical) (?:as|to) (?:\w+ )?\d",
    re.IGNORECASE,
)
_REMARK = re.compile(
    r"(\.pyx?:\d{1,9}\))(?:\s{1,40}(?:#|<-|<=|//|--|\u2190|\u21d0|\().{0,400})$"
)  # of a person, behind a frame
_NOTED = re.compile(  # other headings: `[gn07] ranks 4,5 (all the same)`, `pid 3388, child of 3071 (pt_data_worker)`
    r"(?:.{0,80}[\s\])])?[\[(=*#-]{0,8} ?(?:ranks?|workers?|gpus?|pid|node|host)[ :=#_-]{0,3}\d.{0,200}"
    r"\([^().:/]{1,60}\)",
    re.IGNORECASE,
)


def _frame(text: str) -> tuple[str, str] | None:
    """The function of a frame, and the content of its last balanced parentheses."""
    text = _REMARK.sub(r"\1", text.strip())
    if not text.endswith(")") or text[0] in "#=*" or len(text) > 8192 or _OWNER.search(text) or _NOTED.fullmatch(text):
        return None
    depth = 0
    for at in range(len(text) - 1, 0, -1):
        depth += (text[at] == ")") - (text[at] == "(")
        if depth == 0:
            return (text[: at - 1], text[at + 1 : -1]) if text[at - 1] == " " and at > 1 else None
    return None


def _of(name: str, where: str, found: list[tuple[str, list[str], bool]] | None):  # type: ignore[no-untyped-def]
    numbered = _LINE.fullmatch(where)
    file, line = (numbered[1], int(numbered[2])) if numbered else (where, None)
    if not _is_python(file, line):
        return native_frame(name, file, line)
    variables: list[Variable] | None = None
    if found is not None:
        made = (variable(one, "\n".join(text)[:_TEXT], argument) for one, text, argument in found)
        variables = [one for one in made if one is not None][:MAX_VARIABLES]
    return python_frame(name, file, line, variables)


def _is_python(file: str, line: int | None) -> bool:
    return file.endswith(".py") or file.startswith("<") or (line is not None and not _NATIVE.search(file))


# --- py-spy dump --json ---------------------------------------------------------------------------


def _is_json(head: bytes) -> bool:
    return (
        all(name in head for name in (b'"owns_gil"', b'"frames"', b'"thread_id"'))
        and _JSON_LIST.search(head) is not None
    )


def _json_dumps(source: Source, context: ReadContext) -> Iterator[ProcessDump]:
    """The processes in the source, in order."""
    hints = OwnerHints()
    for before, threads in json_documents_with_context(source, context, MAX_JSON_BYTES):
        for line in before:
            hints.observe(line)
        if isinstance(threads, list):
            yield from _json_processes([thread for thread in threads if isinstance(thread, dict)], hints)


def _json_processes(threads: list[dict[str, Any]], hints: OwnerHints) -> Iterator[ProcessDump]:
    """One list is one process, unless its threads name PIDs (`--subprocesses`)."""
    by_pid: dict[int | None, list[dict[str, Any]]] = {}
    for thread in threads[:MAX_THREADS]:
        by_pid.setdefault(_int(thread.get("pid")), []).append(thread)
    for number, (pid, mine) in enumerate(by_pid.items()):
        record = stacks_record([_json_thread(thread) for thread in mine])
        main = next((thread for thread in mine if thread.get("thread_name") == "MainThread"), None)
        if pid is None and main is not None:
            pid = _int(main.get("os_thread_id"))  # Linux: the main thread's TID is the PID
        if record is not None:
            yield ProcessDump(hints.take(pid) if number == 0 else ProcessRef(pid=pid), record)


def _json_thread(one: dict[str, Any]) -> ThreadBuilder:
    name = one.get("thread_name")
    tid = _int(one.get("os_thread_id")) or _int(one.get("thread_id")) or 0
    found = ThreadBuilder(
        tid, name if isinstance(name, str) else None, one.get("owns_gil") is True, one.get("active") is True
    )
    frames = one.get("frames")
    for frame in frames if isinstance(frames, list) else ():
        made = _json_frame(frame) if isinstance(frame, dict) else None
        if made is not None:
            found.add(made)
    return found


def _json_frame(one: dict[str, Any]) -> Frame | None:
    name, file, module, line = one.get("name"), one.get("filename"), one.get("module"), _int(one.get("line"))
    if not isinstance(name, str):
        return None
    if isinstance(module, str):
        return native_frame(name, module, line)
    if not isinstance(file, str):
        return None
    found = one.get("locals")
    return python_frame(name, file, line, _json_variables(found) if isinstance(found, list) else None)


def _json_variables(found: list[Any]) -> list[Variable]:
    kept: list[Variable] = []
    for one in found[: 4 * MAX_VARIABLES]:
        if isinstance(one, dict) and isinstance(name := one.get("name"), str):
            text = one.get("repr")
            made = variable(
                name, text if isinstance(text, str) else "", one.get("arg") is True, _int(one.get("addr")) or None
            )
            if made is not None:
                kept.append(made)
    return kept[:MAX_VARIABLES]


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


READER = PySpyReader()
