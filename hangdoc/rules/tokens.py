"""Tokens of an expression, and what the rule-engine library may not even parse.

The library evaluates constants and matches patterns while it parses: a pattern or a power can block it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from hangdoc.rules import regex_limits
from hangdoc.rules.conditions import RuleError

MAX_LENGTH = 2_000  # characters of an expression
MAX_TOKENS = 500  # of an expression
REMEDY = "see the expressions of the built-in playbooks"

# No power, no shift, no date, and no number without bound.
_TOKEN = re.compile(
    r"""\s+
    | (?P<text> r? (?: "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' ) )
    | (?P<number> (?: [0-9]{1,15} (?:\.[0-9]{0,15})? | \.[0-9]{1,15} ) (?:[eE][+-]?[0-9]{1,2})? (?![\w.]) )
    | (?P<name> \$?[a-zA-Z_]\w* (?![\w"']) )
    | (?P<regex> =~~ | !~~ | =~ | !~ )
    | (?P<sign> == | != | >= | <= | \?\? | &\. | &\[ | \*(?!\*) | >(?!>) | <(?!<) | [-+/%()\[\]{}.,?:] )
    """,
    re.VERBOSE,
)
_AFTER_PATTERN = frozenset({"", ")", "]", "}", ",", "?", ":", "??", "==", "!=", "and", "or", "if", "for"})


class Token(NamedTuple):
    """A word of an expression, and where it is in the text."""

    kind: str  # text | number | name | regex | sign; empty: the end of the text
    word: str
    begin: int
    end: int


def tokens(text: str) -> list[Token]:
    """The tokens of an expression, with two empty ones at the end; raises RuleError."""
    if len(text) > MAX_LENGTH:
        raise RuleError(f"is longer than {MAX_LENGTH} characters", "split it into several selections")
    found, at = list[Token](), 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise RuleError(f"syntax error at {text[at : at + 20].partition(chr(10))[0]!r}", REMEDY)
        if match.lastgroup:
            found.append(Token(match.lastgroup, match[0], at, match.end()))
        at = match.end()
    if len(found) > MAX_TOKENS:
        raise RuleError(f"has more than {MAX_TOKENS} tokens", "split it into several selections")
    found += [Token("", "", len(text), len(text))] * 2
    for token, pattern, after in zip(found, found[1:], found[2:], strict=False):
        if token.kind == "name" and token.word.startswith("_"):
            raise RuleError(f"unknown name `{token.word}`", "names of facts begin with a letter")
        if token.kind == "regex":
            if pattern.kind != "text" or after.word not in _AFTER_PATTERN:
                sentence = f"`{token.word}` needs one quoted pattern on its right"
                raise RuleError(sentence, "write the pattern there, in quotes")
            _check_pattern(pattern.word, searched=token.word.endswith("~~"))
    return found


def _check_pattern(literal: str, searched: bool) -> None:
    from hangdoc.rules.engine import Rule, errors

    try:
        regex_limits.check(str(Rule(literal).evaluate(None)), searched)
    except regex_limits.PatternError as error:
        raise RuleError(str(error).replace("not a", "invalid"), regex_limits.BOUNDED) from None
    except errors.EngineError as error:
        raise RuleError(error.message, "fix the quoted text") from None
