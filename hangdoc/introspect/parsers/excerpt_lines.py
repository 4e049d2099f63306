"""Places of lines in an excerpt of a source file, as people paste it: begun in the middle, cut, without its `def`.

What is missing around the excerpt is replaced by statements that say nothing (`with _():`, `pass`), so that the loops,
branches and locks that it does show are those around its lines. An excerpt without line numbers is laid on the lines of
the frames: only one offset may put every call that the frames show on a line that makes it.
"""

from __future__ import annotations

import ast
import re

from hangdoc.introspect.parsers.line_context import Module, places_in
from hangdoc.introspect.parsers.lock_calls import table_of
from hangdoc.introspect.parsers.source_text import parsed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Frame = tuple[int, str, str | None, bool]

MAX_ROWS = 2000
MAX_LINE = 200_000  # number of a line
MAX_REPAIRS = 30
MAX_FRAMES = 200
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_CONTINUES = re.compile(r"(?:else|elif|except|finally|case)\b")
_OPENERS = {"else": r"(?:if|elif|for|while|async for|try|except)\b", "elif": r"(?:if|elif)\b"}


def places_of_excerpt(data: bytes, asked: dict[str, Any]) -> dict[str, Any]:
    """As `script_lines.places_and_peers`, for the lines of `asked["frames"]` that the excerpt has.

    `data`: one row a line. `asked["numbers"]`: the number of each row; null: they are not known. `asked["frames"]`: the
    frames in that file, each [line, function, called function or null, whether the line must name that].
    """
    texts = data.decode("utf-8", "replace").split("\n")[:MAX_ROWS]
    frames = [tuple(frame) for frame in asked["frames"][:MAX_FRAMES]]
    numbers = asked["numbers"]
    if numbers is None:
        at = _offset(texts, frames)
        if at is None:
            return _nothing()
        numbers = [at + row for row in range(1, len(texts) + 1)]
    rows = {number: text for number, text in zip(numbers, texts, strict=False) if text.strip() and number <= MAX_LINE}
    inside = [frame for frame in frames if frame[0] in rows]
    if not inside:
        return _nothing()
    tree, text = _tree(rows)
    if tree is not None and (names := _lacking(tree, inside)):
        tree, text = _tree(rows, names.pop()) if len(names) == 1 else (None, text)
    if tree is None:
        return _nothing()
    spans = _spans(tree)
    lines = sorted({line for line, *_ in inside})
    around = {line: max((span for span in spans if span[0] <= line <= span[1]), default=None) for line in lines}
    return {**places_in(tree, text, lines, near=0), "around": around, "locks": table_of(tree, text)}


def _nothing() -> dict[str, Any]:
    return {"functions": [], "places": {}, "around": {}, "locks": []}


def _spans(tree: ast.Module) -> list[tuple[int, int, str]]:
    return [(n.lineno, n.end_lineno or n.lineno, n.name) for n in ast.walk(tree) if isinstance(n, _DEFINITIONS)]


def _lacking(tree: ast.Module, frames: list[Frame]) -> set[str]:
    """The functions of frames outside of every definition in the excerpt."""
    spans = _spans(tree)
    return {
        name
        for line, name, *_ in frames
        if name.isidentifier() and not any(first <= line <= last for first, last, _ in spans)
    }


# --- completing the text --------------------------------------------------------------------------


def _tree(rows: dict[int, str], function: str | None = None) -> tuple[ast.Module | None, list[str]]:
    """The tree of the completed text, each row on its line; `function`: the name of the definition around it."""
    rows = {number: text.expandtabs(4).rstrip() for number, text in rows.items()}
    outer = _outer_indents(rows)
    if function is not None and not outer:
        rows = {number: f"    {text}" for number, text in rows.items()}
        outer = [0]
    first = min(rows)
    if first <= len(outer):
        return None, []
    for depth, indent in enumerate(outer):
        header = f"def {function}():" if function is not None and depth == 0 else "with _():"
        rows[first - len(outer) + depth] = " " * indent + header
    text = [rows.get(number, "") for number in range(1, max(rows) + 1)]
    _complete_blocks(text)
    for _ in range(MAX_REPAIRS):
        try:
            return parsed("\n".join(text).encode())
        except SyntaxError as error:
            if not _repair(text, error):
                return None, []
    return None, []


def _outer_indents(rows: dict[int, str]) -> list[int]:
    """The indents of the statements around the excerpt that it does not show, outermost first."""
    least: list[int] = []
    for number in sorted(rows):
        indent = _indent(rows[number])
        if not rows[number].lstrip().startswith("#") and (not least or indent < least[-1]):
            least.append(indent)
    found = least[1:] if least else []
    if least and least[-1] > 0:
        found = [*found, 0]
    return found[::-1]


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def _complete_blocks(text: list[str]) -> None:
    """Give each header a body, and each `else` and `try` its other part."""
    filled = [at for at, line in enumerate(text) if line.strip() and not line.lstrip().startswith("#")]
    for place, at in enumerate(filled):
        line = text[at]
        indent, stripped = _indent(line), line.strip()
        continues = _CONTINUES.match(stripped) and stripped.endswith(":")
        alone = not _has_opener(text, at, indent, stripped) if continues else not _has_handler(text, at, indent)
        if alone and (continues or stripped == "try:"):
            text[at] = " " * indent + "with _():"
        behind = filled[place + 1] if place + 1 < len(filled) else None
        if re.match(r"(?:if|for|while|with|try|else|elif|except|finally|def|class|async)\b", stripped) and (
            text[at].rstrip().endswith(":") and (behind is None or _indent(text[behind]) <= indent)
        ):
            text[at] += " pass"


def _has_opener(text: list[str], at: int, indent: int, stripped: str) -> bool:
    word = re.match(r"\w+", stripped)
    opener = _OPENERS.get(word[0] if word else "", r"(?:try|except)\b")
    for before in reversed(text[:at]):
        if before.strip() and _indent(before) < indent:
            return False
        if before.strip() and _indent(before) == indent:
            return re.match(opener, before.strip()) is not None
    return False


def _has_handler(text: list[str], at: int, indent: int) -> bool:
    for behind in text[at + 1 :]:
        if behind.strip() and _indent(behind) <= indent:
            return _indent(behind) == indent and re.match(r"(?:except|finally)\b", behind.strip()) is not None
    return False


def _repair(text: list[str], error: SyntaxError) -> bool:
    """Replace the line at which the parser failed; False: there is nothing to replace."""
    at = min(error.lineno or 0, len(text)) - 1
    while at > 0 and not text[at].strip():
        at -= 1
    if at < 0:
        return False
    if isinstance(error, IndentationError) and at > 0 and "unexpected indent" in str(error):
        gap = next((line for line in range(at - 1, -1, -1) if not text[line].strip()), None)
        before = next((line for line in range(at - 1, -1, -1) if text[line].strip()), None)
        if gap is not None and (before is None or gap > before):  # the statement that opens it is left out
            text[gap] = " " * (_indent(text[before]) if before is not None else 0) + "with _():"
            return True
    new = " " * _indent(text[at]) + ("with _():" if text[at].rstrip().endswith(":") else "pass")
    if text[at] == new:
        new = ""
    changed, text[at] = text[at] != new, new
    return changed


# --- line numbers ---------------------------------------------------------------------------------


def _offset(texts: list[str], frames: list[Frame]) -> int | None:
    """What to add to the row (from 1) of an excerpt for its line in the file; None: not known for sure."""
    shift = 20  # lines for what is missing in front
    tree, text = _tree({row + shift: line for row, line in enumerate(texts, 1) if line.strip()})
    if tree is None:
        return None
    module, spans = Module(tree, text), _spans(tree)
    made: dict[int, set[str]] = {}
    for row in range(1, len(texts) + 1):
        place = module.place(row + shift)
        made[row] = {str(name).rpartition(".")[2] for name in place[4]} if place else set()

    def fits(row: int, name: str, callee: str | None) -> bool:
        owner = max((span for span in spans if span[0] <= row + shift <= span[1]), default=None)
        return callee in made[row] and (owner is None or owner[2] == name or not name.isidentifier())

    offsets = {line - row for line, name, callee, _ in frames if callee for row in made if fits(row, name, callee)}
    scores: dict[int, int] = {}
    for at in offsets:
        inside = [
            (fits(line - at, name, callee), line, sure)
            for line, name, callee, sure in frames
            if line - at in made and callee
        ]
        if at >= 0 and all(fit or not sure for fit, _, sure in inside):
            scores[at] = len({line for fit, line, _ in inside if fit})
    most = max(scores.values(), default=0)
    best = [at for at, score in scores.items() if score == most]
    return best[0] if len(best) == 1 else None
