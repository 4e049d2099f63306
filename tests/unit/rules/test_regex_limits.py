from __future__ import annotations

import re
import time

import pytest

from hangdoc.rules.regex_limits import MAX_SUBJECT, PatternError, check, parse

SUBJECTS = tuple((seed * MAX_SUBJECT)[: MAX_SUBJECT - 1] + "!" for seed in ("a", "ab", "a.", " ", "1", "foo", "a=b "))


@pytest.mark.parametrize(
    "pattern",
    [
        "size mismatch",
        "[=^].*",
        ".*foo",
        "^.*timeout.*$",
        r"\d+ of \d+",
        r"rank \d{1,6} of \d{1,6}.*",
        "(foo|bar|baz)",
        "(?i)nccl|gloo",
        "(?:ab?c){1,3}",
        r"(\w)\1",
    ],
)
def test_ordinary_patterns_are_quick(pattern: str) -> None:
    check(pattern)
    compiled = re.compile(pattern)
    began = time.thread_time()
    for subject in SUBJECTS:
        compiled.search(subject)
    assert time.thread_time() - began < 0.5 * len(SUBJECTS)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a*)*b",
        "(a|aa)+$",
        "(a|a)*b",
        "(a|b|ab)*c",
        r"(\w+\.)+x",
        "(((a+)b)+c)+",
        ".*.*x",
        r"\s*\s*=",
        "a?" * 40 + "a" * 40,
        "(a?){50}b",
        "(?:a{0,30}){0,30}b",
        "(?=(a+)+$)b",
        "(x)?(?(1)(a+)+|(b+)+)$",
        r"(.*)\1x",
        "(?:){1000000000}",
        "((a{1000}){1000}){1000}",
    ],
)
def test_patterns_that_could_take_for_ever_are_refused_at_once(pattern: str) -> None:
    began = time.thread_time()
    with pytest.raises(PatternError, match="could take forever"):
        check(pattern)
    assert time.thread_time() - began < 0.2


def test_what_is_tried_at_the_start_only_may_take_more() -> None:
    check(".*foo.*bar", searched=False)
    with pytest.raises(PatternError):
        check(".*foo.*bar.*baz", searched=True)


@pytest.mark.parametrize("pattern", ["(", "*", "a{2,1}", "(?P<x", "(" * 4000 + ")" * 4000, "[z-a]", "a{99999999999}"])
def test_what_is_no_pattern_is_said(pattern: str) -> None:
    with pytest.raises(PatternError, match="regular expression"):
        check(pattern)


def test_what_takes_long_to_compile_is_refused_at_once() -> None:
    began = time.thread_time()
    with pytest.raises(PatternError, match="too long to compile"):
        parse("(?i)" + "[\\x00-\U0010ffff]" * 100)
    assert time.thread_time() - began < 0.2
