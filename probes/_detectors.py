"""A second opinion on secrets: the detectors of detect-secrets, for words that our own patterns left.

Importing detect-secrets takes 0.2 s and 21 MB, since it imports requests; so it is imported only once a text holds a
word that looks random, which next to no honest text does. Only its expressions and its measure of entropy are used:
nothing is verified, so no service is asked. Where it is not installed, our own patterns decide alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

MOST_WORDS = 16  # of one text that are examined
CHANGES = 0.33  # `changes` of random letters; names have less
_BEFORE, _AFTER = 200, 60  # characters around a word in which detectors look for a name
_LONGEST = 512  # characters of a word that they are given
_CACHED = 1024

# Left out: what they find is what a diagnosis is made of.
_NO_SECRETS = frozenset({"IPPublicDetector", "HexHighEntropyString"})

_WORD = re.compile(r"[A-Za-z0-9+=_-]{16,}")
_RUN = re.compile(r"(?<![A-Za-z0-9])[A-Za-z0-9]{16,}")
_HEX = re.compile(r"(?:0x)?[0-9a-fA-F]+")
_MANGLED = re.compile(r"_{0,3}Z|\d+[A-Za-z_]")  # of C++; a length and a name are a part of it
_PATH = re.compile(r"(?<![\w:/])(?:~|\.{1,2})?/(?!/)[^\s\"':=]*\Z")  # an absolute path so far, not a URL

Detect = Callable[[str], Iterator[str]]


def hide_detected(text: str, hidden: str) -> str:
    """The text with `hidden` in place of each word that looks random and that a detector takes for a secret."""
    for start, end in reversed(list(_words(text))):
        word = text[start : min(end, start + _LONGEST)]
        if _detected(text[max(0, start - _BEFORE) : start], word, text[end : end + _AFTER]):
            text = text[:start] + hidden + text[end:]
    return text


def changes(text: str) -> float:
    """Share of neighbouring letters that are of different classes (upper, lower, digit, other)."""
    kinds = ["U" if c.isupper() else "l" if c.islower() else "9" if c.isdigit() else "_" for c in text]
    return sum(a != b for a, b in pairwise(kinds)) / len(text)


def _words(text: str) -> Iterator[tuple[int, int]]:
    """Where the words are that look random: letters and digits in one run, neither a hash nor a C++ name nor a path."""
    count = 0
    for word in _WORD.finditer(text):
        if _MANGLED.match(word[0]) or not any(map(_looks_random, _RUN.findall(word[0]))):
            continue
        if not _PATH.search(text[max(0, word.start() - _BEFORE) : word.start()]):
            yield word.span()
            count += 1
        if count == MOST_WORDS:
            return


def _looks_random(run: str) -> bool:
    return sum(map(str.isdigit, run)) >= 2 and not run.isdigit() and not _HEX.fullmatch(run)


@lru_cache(maxsize=_CACHED)
def _detected(before: str, word: str, after: str) -> bool:
    """Whether a detector takes the word for a secret, by itself or by what stands beside it."""
    around = before + word + after
    for detect in _detectors():
        with suppress(Exception):  # of another's code: one that fails does not cost us the others
            for value in detect(around):
                if word in value or (value in word and len(value) >= len(word) // 2):
                    return True
            if any(word in value for value in detect(f'"{word}"')):
                return True
    return False


@cache
def _detectors() -> Sequence[Detect]:
    try:
        from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
        from detect_secrets.plugins.high_entropy_strings import HighEntropyStringsPlugin

        kinds: list[Any] = list(get_mapping_from_secret_type_to_class().values())
        plugins = [kind() for kind in kinds]
    except Exception:  # not installed, or not as we know it
        return ()
    return [
        _entropic(plugin) if isinstance(plugin, HighEntropyStringsPlugin) else plugin.analyze_string
        for plugin in plugins
        if type(plugin).__name__ not in _NO_SECRETS
    ]


def _entropic(plugin: Any) -> Detect:
    """Quoted words with more bits a letter than its limit. Names of kernels and classes have as many, but are of one
    case, or change it seldom."""

    def detect(text: str) -> Iterator[str]:
        for value in plugin.analyze_string(text):
            mixed = not value.islower() and not value.isupper() and changes(value) >= CHANGES
            if mixed and plugin.calculate_shannon_entropy(value) > plugin.entropy_limit:
                yield value

    return detect
