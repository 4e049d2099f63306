"""Gives stacks without a heading the one that their format has, so that the reader of the format finds them.

People paste the frames alone: `(gdb) bt`, the lines below py-spy's `Thread`, the end of a traceback. One frame may be
anything. Two frames in a row, or one below a line that names a rank, are a stack.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hangdoc.postmortem.readers._cleaning import TextLine
from hangdoc.postmortem.readers._owner_hints import OwnerHints
from hangdoc.postmortem.readers._shell_loops import with_loop_headings

_PREFIX = re.compile(
    r"(?:\[(?:rank|default)?\d{1,6}\]:[ ]?|\d{1,6}: |[A-Za-z][\w.-]{0,60}: (?=\s)|\[pod/[^\]\n]{1,200}\] "
    r"|[\w.-]{1,80}\s{1,20}\| )?"
)
# Each frame has a file and a line: prose and ordinary log lines have no such form.
_FRAMES = {
    "pyspy": re.compile(
        r"\s*(?:[A-Za-z_][\w.]{0,200}(?:\.?<[\w.<>]{1,100}>[\w.]{0,100}){0,4}|<[a-z]{1,20}>)"
        r" \((?:[\w./+<>-]{1,400}\.pyx?|<[\w .]{1,100}>):\d{1,9}\)\s*"
    ),
    "faulthandler": re.compile(r'\s*File "[^"\n]{1,1000}", line (?:\d{1,9}|\?\?\?) in \S[^\n]{0,200}'),
    "traceback": re.compile(r'\s*File "[^"\n]{1,1000}", line \d{1,9}, in \S[^\n]{0,200}'),
    "pystack": re.compile(r'\s*\((?:Python|C)\) File "[^"\n]{1,1000}", line \d{1,9}, in \S[^\n]{0,300}'),
    "gdb": re.compile(
        r"\s*#\d{1,4}\s+(?:0x[0-9a-f]{1,16}(?: <[^>\n]{0,200}>)? (?:in )?\S[^\n]{0,2000}"
        r"|[^\n#]{1,1000}? \([^\n]{0,1000}\)(?: (?:at|from) \S[^\n]{0,400})?)"
    ),
}
_HEADINGS = re.compile(
    r"\(most recent call (?:first|last)\)|\bThread (?:0x[0-9A-Fa-f]{1,16}|\d{1,18})(?: \(|:|$)"
    r"|\bProcess \d{1,9}: |\bTID \d{1,9}:"
    r"|Stack trace of the failed collective"
)
_INSIDE = re.compile(
    r"\s+(?:\.\.\.|Arguments:|Locals:|at \S)|\s{2,}\S|~{2,}|\^{2,}|\s*<no Python frame>|\s{0,8}\.\.\.\s*$"
)
_CALL_SITE = re.compile(r"#\d{1,4} \S{1,200} from \S{1,1000}:\d{1,9}\s*")  # the watchdog's; the log reader's
_INNERMOST = re.compile(r"\s*#0\s")
_RAISED = re.compile(r"\s{0,4}[A-Za-z_][\w.]{0,200}(?:Error|Exception|Interrupt|Exit|Warning|Timeout)\b")
_OUTERMOST = re.compile(r", in (?:<module>|_bootstrap|_run_module_as_main|_shutdown)\s*$")
# Headings without the address or the number that these formats have.
_THREAD = re.compile(
    r"(?:Thread |thread )?(?:\"([^\"\n]{1,100})\"|(MainThread|Thread-\d{1,4}(?: \(\w{1,60}\))?|main(?: thread)?))?:?"
    r" ?\((idle|active|active\+gil)\):?(?: \"?([\w -]{1,60})\"?)?\s*"
)
_BARE_THREAD = re.compile(r"Thread (?:\"([^\"\n]{1,100})\"|(MainThread)):?\s*")
_CALL_FIRST = re.compile(r"(?:(?:Current )?[Tt]hread:? ?|Stack:? ?)?\(?most recent call first\)?:?\s*")
_HEADER = {
    "pyspy": 'Thread 0x0 (idle): "MainThread"',
    "faulthandler": "Stack (most recent call first):",
    "gdb": "Thread 1 (LWP 0):",
    "pystack": "Traceback for thread 0 (python) [] (most recent call last):",
}


@dataclass(slots=True)
class _Run:
    """Frames in a row."""

    kind: str
    prefix: str
    start: int
    end: int  # behind the last
    frames: list[int]  # indices of the lines with frames


def with_headings(lines: Sequence[TextLine]) -> list[TextLine]:
    """The lines, with a heading above each stack that has none."""
    lines = [_canonical(line) if "(" in line.text or line.text.startswith("Thread") else line for line in lines]
    lines = with_loop_headings(lines, lambda text: _kind(text) is not None)
    found: list[TextLine] = []
    done = 0
    for run in _runs(lines):
        found += lines[done : run.start]
        found += _headed(lines, run)
        done = run.end
    found += lines[done:]
    return found


def _canonical(line: TextLine) -> TextLine:
    """A heading that lacks a number, in the form with one."""
    prefix = _prefix(line.text)
    text = line.text[len(prefix) :].strip()
    if len(text) > 160:
        return line
    if found := _THREAD.fullmatch(text):
        name = found[1] or found[2] or found[4] or "MainThread"
        return replace(
            line, text=f'{prefix}Thread 0x0 ({found[3]}): "{"MainThread" if name.startswith("main") else name}"'
        )
    if found := _BARE_THREAD.fullmatch(text):
        return replace(line, text=f'{prefix}Thread 0x0 (idle): "{found[1] or found[2]}"')
    if _CALL_FIRST.fullmatch(text) and not text.startswith("Stack ("):
        return replace(line, text=f"{prefix}Stack (most recent call first):")
    return line


def _runs(lines: Sequence[TextLine]) -> Iterator[_Run]:
    """The stacks without a heading."""
    run: _Run | None = None
    inside: set[str] = set()  # prefixes of the dumps that are open: what follows belongs to them
    for at, line in enumerate(lines):
        prefix = _prefix(line.text)
        text = line.text[len(prefix) :]
        kind = _kind(text)
        if run and run.prefix == prefix and (kind == run.kind or (not kind and _INSIDE.match(text))):
            if kind == "gdb" and _INNERMOST.match(text):
                yield run
                run = _Run(kind, prefix, at, at + 1, [at])
                continue
            if kind:
                run.frames.append(at)
            run.end = at + 1
            continue
        if run:
            if _is_stack(lines, run):
                inside |= {run.prefix}
                yield run
            run = None
        if inside and _ends_dump(text):
            inside = {one for one in inside if prefix and not line.text.startswith(one.rstrip() or "\n")}
        elif heading := _HEADINGS.search(text):
            inside |= {prefix, line.text[: len(prefix) + heading.start()]}
        elif kind and prefix not in inside and not any(one and line.text.startswith(one) for one in inside):
            run = _Run(kind, prefix, at, at + 1, [at])
    if run:
        yield run


def _ends_dump(text: str) -> bool:
    """True for what stands between dumps. A line of another kind may be the rest of a wrapped one."""
    if not text.strip() or text.startswith("(gdb)"):
        return True
    if text[0].isspace() or len(text) > 200 or _HEADINGS.search(text):
        return False
    return (
        _RAISED.match(text) is not None or _names_owner(text) or (text.rstrip().endswith(":") and " " in text.strip())
    )


def _names_owner(text: str) -> bool:
    hints = OwnerHints()
    hints.observe(text)
    return hints.updated


def _is_stack(lines: Sequence[TextLine], run: _Run) -> bool:
    """True for two different frames, or one below a line that names a process."""
    if len({lines[at].text for at in run.frames}) > 1:
        return True
    return _names_owner(
        next((one.text for one in reversed(lines[max(0, run.start - 2) : run.start]) if one.text.strip()), "")
    )


def _kind(text: str) -> str | None:
    if len(text) > 4096 or not text or ("(" not in text and "File " not in text and "#" not in text):
        return None
    for kind, pattern in _FRAMES.items():
        if pattern.fullmatch(text):
            return None if kind == "gdb" and _CALL_SITE.search(text) else kind
    return None


def _headed(lines: Sequence[TextLine], run: _Run) -> list[TextLine]:
    own = list(lines[run.start : run.end])
    if not _is_stack(lines, run):
        return own
    if run.kind != "traceback":
        return [replace(own[0], text=run.prefix + _HEADER[run.kind]), *own]
    after = lines[run.end].text[len(run.prefix) :] if run.end < len(lines) else ""
    if _RAISED.match(after):
        return [replace(own[0], text=f"{run.prefix}Traceback (most recent call last):"), *own]
    frames = [lines[at] for at in run.frames]
    if not _OUTERMOST.search(frames[-1].text) or _OUTERMOST.search(frames[0].text):
        frames.reverse()  # as the module `traceback` prints them: the innermost last
    return [replace(own[0], text=f"{run.prefix}Traceback (most recent call first):"), *frames]


def _prefix(text: str) -> str:
    found = _PREFIX.match(text)
    return found[0] if found else ""
