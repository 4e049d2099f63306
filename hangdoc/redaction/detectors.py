"""A second opinion on secrets: the detectors of detect-secrets, for words that our own patterns did not match.

Importing detect-secrets imports requests: 0.3 s, 21 MB, and a network client in a process that may be root. So a child
process imports it and returns the data of its detectors: regular expressions, alphabets and entropy limits. The child
starts once, at the first text with a random-looking word, which is rare. Nothing is verified, so no service is
contacted. Without detect-secrets, only our own patterns apply.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise

MAX_WORDS = 16  # examined per text
CHANGES = 0.33  # `changes` of random letters; names have fewer
_BEFORE, _AFTER = 200, 60  # characters of context in which detectors look for a name
_LONGEST = 512  # characters of a word given to detectors
_CACHED = 1024
_SHORTEST = 8  # characters of a secret
TIMEOUT_S = 10.0  # of the child

# Left out: their matches (IP addresses, hashes) are part of a diagnosis.
_NO_SECRETS = frozenset({"IPPublicDetector", "HexHighEntropyString"})

_WORD = re.compile(r"[A-Za-z0-9+=_-]{16,}")
_RUN = re.compile(r"(?<![A-Za-z0-9])[A-Za-z0-9]{16,}")
_HEX = re.compile(r"(?:0x)?[0-9a-fA-F]+")
_MANGLED = re.compile(r"_{0,3}Z|\d+[A-Za-z_]")  # a C++ name, which contains lengths and names
_PATH = re.compile(r"(?<![\w:/])(?:~|\.{1,2})?/(?!/)[^\s\"':=]*\Z")  # an absolute path so far, not a URL


def hide_detected(text: str, hidden: str) -> str:
    """The text with `hidden` in place of each random-looking word that a detector takes for a secret."""
    for start, end in reversed(list(_words(text))):
        word = text[start : min(end, start + _LONGEST)]
        if _detected(text[max(0, start - _BEFORE) : start], word, text[end : end + _AFTER]):
            text = text[:start] + hidden + text[end:]
    return text


def bits(text: str) -> float:
    """Shannon entropy of a text, in bits per character."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())


def changes(text: str) -> float:
    """Share of adjacent characters in different classes (upper, lower, digit, other)."""
    kinds = ["U" if c.isupper() else "l" if c.islower() else "9" if c.isdigit() else "_" for c in text]
    return sum(a != b for a, b in pairwise(kinds)) / len(text)


def _words(text: str) -> Iterator[tuple[int, int]]:
    """Spans of random-looking words: letters and digits in one run; not a hash, C++ name or path."""
    count = 0
    for word in _WORD.finditer(text):
        if _MANGLED.match(word[0]) or not any(map(_looks_random, _RUN.findall(word[0]))):
            continue
        if not _PATH.search(text[max(0, word.start() - _BEFORE) : word.start()]):
            yield word.span()
            count += 1
        if count == MAX_WORDS:
            return


def _looks_random(run: str) -> bool:
    return sum(map(str.isdigit, run)) >= 2 and not run.isdigit() and not _HEX.fullmatch(run)


@lru_cache(maxsize=_CACHED)
def _detected(before: str, word: str, after: str) -> bool:
    """True if a detector takes the word for a secret, by itself or by its context."""
    around = before + word + after
    return any(detector.finds(word, around) for detector in _detectors())


@dataclass(frozen=True, slots=True)
class Expression:
    """A detector by regular expression: of a secret's format, or of the name before it."""

    expression: re.Pattern[str]
    group: int | None  # group with the secret; None: every group that is long enough, else the whole match

    def finds(self, word: str, around: str) -> bool:
        return any(
            word in value or (value in word and 2 * len(value) >= len(word))
            for found in self.expression.finditer(around)
            for value in self._values(found)
        )

    def _values(self, found: re.Match[str]) -> Sequence[str]:
        if self.group is not None:
            return [found[self.group] or ""]
        return [value for value in found.groups() if value and len(value) >= _SHORTEST] or [found[0]]


@dataclass(frozen=True, slots=True)
class Entropy:
    """A detector by entropy. Kernel and class names have as much entropy, but use one case, or change it rarely."""

    letters: frozenset[str]
    limit: float  # bits per character

    def finds(self, word: str, around: str) -> bool:
        mixed = not word.islower() and not word.isupper() and changes(word) >= CHANGES
        return mixed and self.letters.issuperset(word) and bits(word) > self.limit


@cache
def _detectors() -> Sequence[Expression | Entropy]:
    """The detectors of detect-secrets; none if it is not installed or has changed."""
    paths = [path for path in sys.path if path]  # not our working folder
    command = [sys.executable, "-I", "-S", "-c", _CHILD, *paths]
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
        given = json.loads(done.stdout)
        expressions = [
            Expression(re.compile(pattern, flags), group)
            for name, pattern, flags, group in given["expressions"]
            if name not in _NO_SECRETS
        ]
        entropies = [
            Entropy(frozenset(letters), limit) for name, letters, limit in given["entropies"] if name not in _NO_SECRETS
        ]
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, KeyError, re.error):
        return ()
    return (*expressions, *entropies)


_CHILD = """
import json, sys
sys.path[:0] = sys.argv[1:]
from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
from detect_secrets.plugins import keyword
from detect_secrets.plugins.base import RegexBasedDetector
from detect_secrets.plugins.high_entropy_strings import HighEntropyStringsPlugin
expressions, entropies = [], []
for kind in get_mapping_from_secret_type_to_class().values():
    if issubclass(kind, RegexBasedDetector):
        expressions += [(kind.__name__, one.pattern, one.flags, None) for one in kind.denylist]
    elif issubclass(kind, HighEntropyStringsPlugin):
        one = kind()
        entropies.append((kind.__name__, one.charset, one.entropy_limit))
for one, group in keyword.QUOTES_REQUIRED_DENYLIST_REGEX_TO_GROUP.items():
    expressions.append(("KeywordDetector", one.pattern, one.flags, group))
print(json.dumps({"expressions": expressions, "entropies": entropies}))
"""
