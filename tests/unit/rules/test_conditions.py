"""Conditions: their grammar, Kleene's logic, null in evidence that was seen, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from hangdoc.analysis import thresholds
from hangdoc.analysis.facts import Facts
from hangdoc.rules.conditions import Truth
from hangdoc.rules.evaluate import FAILED, evaluate
from hangdoc.rules.loader import load
from tests.support.toy_schema import (
    PROBES,
    SCHEMA,
    LinkFacts,
    NetworkJob,
    StackFacts,
    StallJob,
    StorageFacts,
    facts,
    library,
    playbook,
    write,
)

YES, NO, NOTHING = StorageFacts(0.9, "disk"), StorageFacts(0.1, "tape"), StorageFacts()
BUSY = {"busy": "storage.share > 0.5"}
SIGNS: dict[Truth, str] = {True: "T", False: "F", None: "?"}


def truth(directory: Path, when: str, given: Facts, **changes: Any) -> Truth:
    """The outcome of the condition over these facts; None: unknown."""
    rule = {"select": {}, "needs": None, "culprits": None, "summary": "x", **changes}
    findings, considered = evaluate(library(directory, playbook(when=when, **rule)), given)
    if findings:
        return True
    (other,) = considered
    assert not other.why.startswith(FAILED), other.why
    return {"no": False, "unknown": None}[other.outcome]


def ranks(*storage: StorageFacts | None, **more: Any) -> Facts:
    """Ranks with this storage; None: the probe has not seen that rank."""
    return facts(*[StackFacts("all_reduce", "train (a.py:1)", True)] * len(storage), storage=storage, **more)


def refusals(directory: Path, **changes: Any) -> list[str]:
    """What is refused: `file:line: sentence; remedy`, from the folder of the playbook on."""
    found = load([write(directory, playbook(**changes))], SCHEMA, PROBES)
    assert bool(found.problems) != bool(found.playbooks)
    return [str(problem).removeprefix(f"{directory}/") for problem in found.problems]


# --- Kleene's logic -------------------------------------------------------------------------------

OVER_RANKS = {"T": "rank >= 0", "F": "rank < 0", "?": "storage.share > 0.5"}
OVER_JOB = {"T": "any(rank >= 0)", "F": "job.stall.seconds < 0", "?": "any(storage.share > 0.5)"}


@pytest.mark.parametrize("terms", [OVER_RANKS, OVER_JOB], ids=["over ranks", "over the job"])
@pytest.mark.parametrize(
    ("word", "table"),
    [
        ("and", {"TT": "T", "TF": "F", "T?": "?", "FT": "F", "FF": "F", "F?": "F", "?T": "?", "?F": "F", "??": "?"}),
        ("or", {"TT": "T", "TF": "T", "T?": "T", "FT": "T", "FF": "F", "F?": "?", "?T": "T", "?F": "?", "??": "?"}),
    ],
)
def test_truth_tables(tmp_path: Path, terms: dict[str, str], word: str, table: dict[str, str]) -> None:
    found: dict[str, str] = {}
    for both in table:
        written = f"{terms[both[0]]} {word} {terms[both[1]]}"
        when = f"any({written})" if terms is OVER_RANKS else written
        found[both] = SIGNS[truth(tmp_path / str(len(found)), when, ranks(None))]
    assert found == table


@pytest.mark.parametrize(("word", "decisive"), [("and", "F"), ("or", "T")])
def test_of_three_joined_one_decides_wherever_it_stands(tmp_path: Path, word: str, decisive: str) -> None:
    for number, three in enumerate(itertools.product("TF?", repeat=3)):
        when = f" {word} ".join(OVER_JOB[one] for one in three)
        other = "T" if decisive == "F" else "F"
        expected = decisive if decisive in three else "?" if "?" in three else other
        assert SIGNS[truth(tmp_path / str(number), when, ranks(None))] == expected, three


@pytest.mark.parametrize("terms", [OVER_RANKS, OVER_JOB], ids=["over ranks", "over the job"])
@pytest.mark.parametrize(("value", "opposite"), ["TF", "FT", "??"])
def test_not_turns_yes_and_no_round_and_leaves_unknown(
    tmp_path: Path, terms: dict[str, str], value: str, opposite: str
) -> None:
    for number, written in enumerate((f"not {terms[value]}", f"not ({terms[value]})", f"not not not {terms[value]}")):
        when = f"any({written})" if terms is OVER_RANKS else written
        assert SIGNS[truth(tmp_path / str(number), when, ranks(None))] == opposite


# any, all and none over the members: + busy, - not busy, ? not seen
@pytest.mark.parametrize(
    ("members", "of_any", "of_all", "of_none"),
    [
        ("", "F", "T", "T"),
        ("+", "T", "T", "F"),
        ("-", "F", "F", "T"),
        ("?", "?", "?", "?"),
        ("++", "T", "T", "F"),
        ("+-", "T", "F", "F"),
        ("--", "F", "F", "T"),
        ("+?", "T", "?", "F"),
        ("-?", "?", "F", "?"),
        ("??", "?", "?", "?"),
        ("+-?", "T", "F", "F"),
    ],
)
def test_quantifiers(tmp_path: Path, members: str, of_any: str, of_all: str, of_none: str) -> None:
    given = ranks(*[{"+": YES, "-": NO, "?": None}[member] for member in members])
    for word, expected in (("any", of_any), ("all", of_all), ("none", of_none)):
        for written in ("busy", "storage.share > 0.5", "not not busy", "observed and busy"):
            directory = tmp_path / f"{word} {len(written)}"
            assert SIGNS[truth(directory, f"{word}({written})", given, select=BUSY)] == expected, (word, written)


@pytest.mark.parametrize(
    ("members", "when", "expected"),
    [
        ("++?", "count(busy) >= 2", "T"),
        ("+?", "count(busy) >= 2", "?"),
        ("-?", "count(busy) >= 2", "F"),
        ("-?", "count(busy) > 1", "F"),
        ("+?", "count(busy) < 2", "?"),
        ("+-?", "count(busy) < 3", "T"),
        ("++?", "count(busy) <= 1", "F"),
        ("+-?", "3 > count(busy)", "T"),
        ("+-", "count(busy) == 1", "T"),
        ("+-", "count(busy) != 1", "F"),
        ("+?", "count(busy) == 1", "?"),
        ("+?", "count(busy) != 1", "?"),
        ("+??", "count(busy) == 2", "?"),
        ("+?", "count(busy)", "T"),
        ("-?", "count(busy)", "?"),
        ("--", "not count(busy)", "T"),
        ("++-", "count(busy) > count(not busy)", "T"),
        ("++-", "count(busy) + count(not busy) == count(observed)", "T"),
        ("++-", "2 * count(busy) > count(observed)", "T"),
        ("++-", "(count(busy) + 1) * 2 >= 6", "T"),
        ("++-", "count(busy) in [2, 4]", "T"),
        ("+?", "count(observed) == 2", "T"),
        ("+?", "count(busy) - 5 < 0", "T"),
        ("+?", "-count(busy) <= -1", "T"),
        ("+-", 'count(busy and storage.target == "disk") == 1', "T"),
        ("+?", "count(busy) >= 1 and count(busy) >= 2", "?"),
        ("+?", "count(busy) >= 3 or any(busy)", "T"),
        # one count grows with the unknown ranks and the other shrinks the value
        ("+?", 'count(busy) - count(not busy and storage.target == "tape") > 0', "?"),
        ("+?", 'count(busy) > count(not busy and storage.target == "tape")', "?"),
        # true of the smallest and of the largest possible count, and false between them
        ("+??", "count(busy) in [1, 3]", "?"),
        ("+??", "count(busy) % 2 > 0", "?"),
        ("+?", "count(busy) == 3", "F"),
        ("+?", "count(busy) != 3", "T"),
        ("++", "count(busy) > job.stall.seconds", "F"),  # which is null
    ],
)
def test_counts(tmp_path: Path, members: str, when: str, expected: str) -> None:
    given = ranks(*[{"+": YES, "-": NO, "?": None}[member] for member in members], stall=StallJob(True, None))
    assert SIGNS[truth(tmp_path, when, given, select=BUSY)] == expected


def test_links_are_counted_and_quantified_like_ranks(tmp_path: Path) -> None:
    links = tuple(LinkFacts(0, n, "10.0.0.1:1", f"10.0.0.{n}:2", None, dead) for n, dead in ((1, True), (2, False)))
    given, of_links = facts(StackFacts(), network=NetworkJob(links)), {"broken": "dead", "whole": "not broken"}
    for number, when in enumerate(("any(broken)", "count(broken) == 1", "not all(whole)", "count(not broken) == 1")):
        assert truth(tmp_path / str(number), when, given, links=of_links) is True, when
    assert truth(tmp_path / "none", "none(broken)", given, links=of_links) is False


@pytest.mark.parametrize("name", ["broken", "op"])
def test_a_field_with_the_name_of_a_link_selection_is_a_field(tmp_path: Path, name: str) -> None:
    assert truth(tmp_path, 'any(stack.op == "all_reduce")', ranks(YES), links={name: "dead"}) is True


def test_a_selection_of_links_may_not_have_the_name_of_a_group_of_ranks(tmp_path: Path) -> None:
    (found,) = refusals(tmp_path, links={"stack": "dead"})
    assert found == "late/playbook.yaml:1: the selection `stack` has a reserved or duplicate name; rename it"


# --- anything, against a plain reading of the definition ------------------------------------------

# A term over one rank, and its value where the rank was seen.
TERMS: dict[str, Callable[[StorageFacts, int], bool]] = {
    "storage.share > 0.5": lambda storage, rank: storage.share is not None and storage.share > 0.5,
    "storage.target": lambda storage, rank: bool(storage.target),
    'storage.target != "disk"': lambda storage, rank: storage.target != "disk",
    "storage.share == null": lambda storage, rank: storage.share is None,
    "rank > 1": lambda storage, rank: rank > 1,
}
Tree = Any  # a term, or ("not", tree), or ("and" or "or", tree, tree)
trees: some.SearchStrategy[Tree] = some.recursive(
    some.sampled_from(list(TERMS)),
    lambda inner: some.one_of(
        some.tuples(some.just("not"), inner), some.tuples(some.sampled_from(["and", "or"]), inner, inner)
    ),
    max_leaves=8,
)
BINDS = {"or": 0, "and": 1, "not": 2}


def written(tree: Tree, within: int = 0) -> str:
    """The tree with as few parentheses as possible."""
    if isinstance(tree, str):
        return tree
    binds = BINDS[tree[0]]
    parts = [written(part, binds) for part in tree[1:]]
    text = f"not {parts[0]}" if tree[0] == "not" else f" {tree[0]} ".join(parts)
    return f"({text})" if binds < within else text


def meant(tree: Tree, storage: StorageFacts | None, rank: int) -> Truth:
    if isinstance(tree, str):
        return None if storage is None and "storage" in tree else TERMS[tree](storage or NOTHING, rank)
    parts = [meant(part, storage, rank) for part in tree[1:]]
    if tree[0] == "not":
        return None if parts[0] is None else not parts[0]
    decisive = tree[0] == "or"
    return decisive if decisive in parts else None if None in parts else not decisive


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tree=trees,
    storage=some.lists(some.sampled_from([YES, NO, NOTHING, None]), max_size=4),
    shared=some.booleans(),
    least=some.integers(0, 4),
)
def test_any_condition_means_what_its_words_mean(
    tmp_path: Path, tree: Tree, storage: list[StorageFacts | None], shared: bool, least: int
) -> None:
    """Ranks that share their facts are judged together, and others apart: the outcome is the same."""
    own = storage if shared else [one and replace(one) for one in storage]
    seen = ranks(*own)
    values = [meant(tree, one, rank) for rank, one in enumerate(storage)]
    certain, maybe = values.count(True), len(values) - values.count(False)
    expected: dict[str, Truth] = {
        "any({})": True if certain else None if maybe else False,
        "none({})": False if certain else None if maybe else True,
        "all({})": False if False in values else None if None in values else True,
        f"count({{}}) >= {least}": True if certain >= least else None if maybe >= least else False,
        f"count({{}}) == {least}": certain == least
        if certain == maybe
        else None
        if certain <= least <= maybe
        else False,
    }
    for number, (when, outcome) in enumerate(expected.items()):
        with TemporaryDirectory(dir=tmp_path) as directory:
            text = when.format(written(tree) if number % 2 else "chosen")
            found = truth(Path(directory), text, seen, select={"chosen": written(tree)})
            assert found is outcome, (text, written(tree), storage)


# --- selections -----------------------------------------------------------------------------------


def test_selections_build_on_those_above(tmp_path: Path) -> None:
    select = {**BUSY, "idle": "not busy", "both": "busy or idle", "first": "both and rank == 0"}
    given = ranks(YES, NO, None)
    for number, (when, expected) in enumerate(
        [
            ("count(busy) == 1", "?"),
            ("count(busy) >= 1 and count(idle) >= 1", "T"),
            ("count(both) >= 2", "T"),
            ("count(both) >= 3", "?"),
            ("any(first)", "T"),
            ("none(first and idle)", "T"),
        ]
    ):
        assert SIGNS[truth(tmp_path / str(number), when, given, select=select)] == expected, when


def test_the_name_of_a_selection_means_all_of_its_condition(tmp_path: Path) -> None:
    select = {"either": "rank == 0 or rank == 1", "odd": "not either and rank < 3", "two": "either and rank == 1"}
    assert truth(tmp_path, "count(odd) == 1 and count(two) == 1", ranks(*[YES] * 4), select=select) is True


def test_facts_of_the_job_are_read_over_ranks_and_over_the_job(tmp_path: Path) -> None:
    given = ranks(YES, stall=StallJob(True, 41.0))
    assert truth(tmp_path / "a", "job.stall.stalled and job.stall.seconds > 40", given) is True
    assert truth(tmp_path / "b", "all(job.stall.stalled and rank >= 0)", given) is True


def test_a_threshold_is_read_by_its_name(tmp_path: Path) -> None:
    mostly = thresholds.value("MOSTLY")
    given = ranks(*(StorageFacts(mostly + by) for by in (-0.01, 0.0, 0.01)))
    assert truth(tmp_path / "a", "count(storage.share >= MOSTLY) == 2", given) is True
    assert truth(tmp_path / "b", "MOSTLY < 1", given) is True


# --- null in evidence that was seen ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        ('storage.target == "disk"', "F"),
        ('storage.target != "disk"', "T"),
        ('not storage.target == "disk"', "T"),
        ("storage.target == storage.target", "F"),
        ("storage.target == stack.site", "F"),
        ("storage.target != stack.site", "T"),
        ("storage.share > 0", "F"),
        ("storage.share >= 0", "F"),
        ("storage.share < 1", "F"),
        ("storage.share <= 1", "F"),
        ("not storage.share > 0", "T"),
        ("not storage.share < 1", "T"),
        ("storage.share + 1 > 0", "F"),
        ("(storage.share + stack.depth) > 0", "F"),
        ("storage.target", "F"),
        ("not storage.target", "T"),
        ("not not storage.target", "F"),
        ("storage.target == null", "T"),
        ("storage.target != null", "F"),
        ("null == storage.target", "T"),
        ("not storage.target == null", "F"),
        ('storage.target in ["disk", "tape"]', "F"),
        ('storage.target not in ["disk", "tape"]', "T"),
        ('not (storage.target in ["disk", "tape"])', "T"),
        ('storage.target =~ ".*"', "F"),
        ('storage.target =~~ ""', "F"),
        ('not storage.target =~ ".*"', "T"),
        ('storage.target.starts_with("d")', "F"),
        ("storage.target.length > 0", "F"),
        ("stack.waits", "F"),
        ("not stack.waits", "T"),
        ("stack.names", "F"),  # an empty list
        ("not stack.names", "T"),
        ('storage.target !~ "d"', "T"),
        ('storage.target !~~ "d"', "T"),
        ("-storage.share", "F"),
    ],
)
def test_null_means_there_is_none(tmp_path: Path, term: str, expected: str) -> None:
    given = facts(StackFacts(), storage=(NOTHING,))
    assert SIGNS[truth(tmp_path, f"any({term})", given)] == expected


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        ("job.stall.seconds > 3", "F"),
        ("not job.stall.seconds > 3", "T"),
        ("job.stall.seconds == null", "T"),
        ("job.stall.seconds != 3", "T"),
        ("job.stall.seconds", "F"),
        ("not job.network.lines", "T"),
    ],
)
def test_null_among_the_facts_of_the_job(tmp_path: Path, term: str, expected: str) -> None:
    given = ranks(YES, stall=StallJob(True, None))
    assert SIGNS[truth(tmp_path / "a", term, given)] == expected
    assert SIGNS[truth(tmp_path / "b", f"all({term})", given)] == expected


@pytest.mark.parametrize(
    "term",
    [
        "storage.share > 0.5",
        "not storage.share > 0.5",
        "storage.share == null",
        "storage.target != null",
        "storage.target",
        'storage.target != "disk"',
        "storage.share > stack.depth",
    ],
)
def test_what_no_probe_has_seen_is_unknown(tmp_path: Path, term: str) -> None:
    assert truth(tmp_path, f"any({term})", ranks(None)) is None


def test_only_the_group_that_was_not_seen_is_unknown(tmp_path: Path) -> None:
    assert truth(tmp_path / "a", "all(stack.waits)", ranks(None)) is True
    assert truth(tmp_path / "b", "all(stack.waits)", facts(None, storage=(YES,))) is None
    assert truth(tmp_path / "c", 'any(alive and host =~ "node.")', facts(None)) is True


def test_a_rank_that_has_ended_is_not_unknown(tmp_path: Path) -> None:
    given = ranks(None, NO, dead=frozenset({0}))
    assert truth(tmp_path / "a", "any(storage.share > 0.5)", given) is False
    assert truth(tmp_path / "b", "all(not storage.share > 0.5)", given) is True
    assert truth(tmp_path / "c", "count(storage.target == null) == 1", given) is True


def test_a_probe_of_the_host_has_seen_its_ranks(tmp_path: Path) -> None:
    given = facts(StackFacts(), StackFacts())
    given.case.history[0].records["io"] = object()  # type: ignore[index]
    assert truth(tmp_path / "a", "any(rank == 0 and storage.share == null)", given) is True
    assert truth(tmp_path / "b", "any(rank == 1 and storage.share == null)", given) is None


# --- grammar --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "same"),
    [
        ("{a} or {b} and {c}", "{a} or ({b} and {c})"),
        ("{a} and {b} or {c}", "({a} and {b}) or {c}"),
        ("not {a} and {b}", "(not {a}) and {b}"),
        ("not {a} or {b}", "(not {a}) or {b}"),
        ("not {a} and not {b} or {c}", "((not {a}) and (not {b})) or {c}"),
        ("not not {a}", "{a}"),
        ("not not not {a}", "not {a}"),
        ("not not {a} and {b}", "{a} and {b}"),
        ("(({a})) or (({b} and (({c}))))", "{a} or {b} and {c}"),
        ("not ({a} or {b})", "not {a} and not {b}"),
        ("not ({a} and {b}) or {c}", "not {a} or not {b} or {c}"),
        ("{a}\n  and\t{b}", "{a} and {b}"),
    ],
)
@pytest.mark.parametrize("over", ["ranks", "job"])
def test_precedence(tmp_path: Path, when: str, same: str, over: str) -> None:
    """`not` binds tighter than `and`, and that tighter than `or`: for each of the 27 values of three terms."""
    terms = OVER_RANKS if over == "ranks" else OVER_JOB
    pairs = []
    for three in itertools.product("TF?", repeat=3):
        names = dict(zip("abc", (terms[one] for one in three), strict=True))
        written = [one.format(**names) for one in (when, same)]
        pairs.append([f"any({one})" for one in written] if over == "ranks" else written)
    steps = [{"if": one, "because": f"{n} {side}"} for n, pair in enumerate(pairs) for side, one in enumerate(pair)]
    opposite = [{"if": f"not ({step['if']})", "because": step["because"]} for step in steps]
    yes, no = (set[str](), set[str]())
    for number, (found, part) in enumerate(((yes, steps[:54]), (no, opposite[:54]))):
        made = playbook(select={}, needs=None, culprits=None, summary="x", when="true", confidence={"raise": part})
        ((finding,), _) = evaluate(library(tmp_path / str(number), made), ranks(None))
        found.update(finding.reasons)
    for n in range(len(pairs)):
        assert (f"{n} 0" in yes, f"{n} 0" in no) == (f"{n} 1" in yes, f"{n} 1" in no), pairs[n]
    assert yes
    assert no


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        ("(storage.share + stack.depth) > 1", "F"),
        ("(storage.share + 1) * 2 > 3", "T"),
        ("storage.share + 1 * 2 > 3", "F"),
        ("((storage.share)) > 0.5", "T"),
        ("((storage.share) > 0.5)", "T"),
        ("(storage.share) > 0.5 and ((rank) == 0)", "T"),
        ('storage.target in ["disk"]', "T"),
        ('storage.target not in ["disk"]', "F"),
        ('not storage.target in ["disk"]', "F"),
        ('not storage.target not in ["disk"]', "T"),
        ('"disk" == storage.target', "T"),
        ('"and" != storage.target and "or (" != "not )"', "T"),
        ('storage.target =~ "d(i|a)sk"', "T"),
        ('storage.target.starts_with("di")', "T"),
        ('"stacks" in seen', "T"),
        ("$max([storage.share, 0.1]) > 0.5", "T"),
        ('[n for n in seen if n == "io"].length == 1', "T"),
        ("rank % 2 == 0 and -rank <= 0", "T"),
        ("true", "T"),
        ("false", "F"),
    ],
)
def test_terms(tmp_path: Path, term: str, expected: str) -> None:
    assert SIGNS[truth(tmp_path, f"any({term})", ranks(YES))] == expected


# --- refusals -------------------------------------------------------------------------------------

A_SELECTION = "`late` is a selection, not a condition; write `any(late)` or `none(late)`"
LINKS = {"broken": "dead"}


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("late", A_SELECTION),
        ("not late", A_SELECTION),
        ("job.stall.stalled and late", A_SELECTION),
        ("any(waiting) and (late)", A_SELECTION),
        ("broken", "`broken` is a selection, not a condition; write `any(broken)` or `none(broken)`"),
        ("any()", "a quantifier without a condition; name a selection: `any(waiting)`"),
        ("none( )", "a quantifier without a condition; name a selection: `any(waiting)`"),
        ("count() > 1", "a quantifier without a condition; name a selection: `any(waiting)`"),
        ("any(late) == true", "`any(...)` stands by itself; join it with `and`, `or` and `not`"),
        ("true == none(late)", "`none(...)` stands by itself; join it with `and`, `or` and `not`"),
        ("any(late) > 1", "`any(...)` stands by itself; join it with `and`, `or` and `not`"),
        ("count(late) > any(late)", "`any(...)` stands by itself; join it with `and`, `or` and `not`"),
        ("any(any(late))", "`any(...)` is a condition over the job; "),
        ("any(count(late) > 1)", "`count(...)` is a number of the job; compare it in a condition over the job"),
        ("count(count(late)) > 1", "`count(...)` is a number of the job; compare it in a condition over the job"),
        ("late.length > 0", A_SELECTION),
        ("late == 1", A_SELECTION),
        ("count(late) > late", A_SELECTION),
        ("any(late.length > 0)", "`late` is a selection, not a field; join it with `and`, `or` and `not`"),
        ("any(rank == late)", "`late` is a selection, not a field; join it with `and`, `or` and `not`"),
        ("unobserved", "unknown name `unobserved`; "),
        ("any(broken and late)", "`late` is a selection of ranks, not of links; name selections of links only"),
        ("any(late and broken)", "`late` is a selection of ranks, not of links; name selections of links only"),
        ("any(job)", "`job` is a whole record; name a field of it"),
        ("any(stack)", "`stack` is a whole record; name a field of it"),
        ("job.stall", "`job.stall` is a whole record; name a field of it"),
        ("stack.waits", "unknown name `stack`; "),
        ("stall.stalled", "unknown name `stall`; "),
        ("any(stack.wait)", "unknown field `wait`; did you mean `waits`?"),
        ("any(stack.depth > MOSTLI)", "unknown name `MOSTLI`; did you mean `MOSTLY`?"),
        ("any(late", "a parenthesis is not closed; close it"),
        ("(any(late)", "a parenthesis is not closed; close it"),
        ("any(late))", "syntax error at ')'; "),
        (")", "syntax error at ')'; "),
        ("()", "syntax error at ')'; "),
        ("any(late) and", "syntax error at ''; "),
        ("and any(late)", "syntax error at 'and any(late)'; "),
        ("any(late) or or any(late)", "syntax error at 'or any(late)'; "),
        ("not", "syntax error at ''; "),
        ("any late", A_SELECTION),
        ("any(late) any(waiting)", "`any(...)` stands by itself; join it with `and`, `or` and `not`"),
        ("any(late), any(waiting)", "`any(...)` stands by itself; join it with `and`, `or` and `not`"),
        ("any(late) ?? false", "`any(...)` stands by itself; join it with `and`, `or` and `not`"),
        ("any((storage.share + 1) == null)", "`== null` of a calculation; compare the field itself with null"),
        ('any((storage.target == "disk") == false)', "a comparison within a term; write the comparison by itself, "),
        ("any((storage.share > 0.5) == true)", "a comparison within a term; write the comparison by itself, "),
        ("any(stack.step ?? 0 > 1)", "data type mismatch; "),
        ("any((stack.step ?? 0) > 1)", "`??` has no place in a condition; leave it out: what was not seen is unknown"),
        ("any(stack.waits ? true : false)", "`? :` in a condition; write it with `and` and `or`"),
        (
            "any(stack.waits == (rank > 1 and rank < 3))",
            "`and` or `or` within a term; put the comparison on each side of it",
        ),
        (
            'any(stack.op == "")',
            "`==` with an empty text: where there is none, the field may be null; write `stack.op` or `not stack.op`",
        ),
        (
            'any("" != stack.op)',
            "`!=` with an empty text: where there is none, the field may be null; write `stack.op` or `not stack.op`",
        ),
        ("any(stack.op == 3)", "`==` compares text with a number, which are never equal; compare values of one type"),
        (
            'any(stack.depth != "3")',
            "`!=` compares a number with text, which are never equal; compare values of one type",
        ),
        ('any(stack.waits == "true")', "`==` compares true or false with text, which are never equal; "),
        ('any(stack.step > "3")', "data type mismatch; "),
        (
            "[l for l in job.network.links if l.dead].length > 0",
            "a list comprehension over records; write `any(...)`, `none(...)` or `count(...)`",
        ),
        (
            "$any([l.dead for l in job.network.links])",
            "a list comprehension over records; write `any(...)`, `none(...)` or `count(...)`",
        ),
        ("(" * 21 + "any(late)" + ")" * 21, "is nested too deeply; split it into several selections"),
        ("any(late]", "syntax error at ']'; "),
        ("count(late] > 0", "syntax error at ']'; "),
        ("count_0 + count(late) > 0", "unknown name `count_0`; write `count(...)`"),
        ("count(late) > lat", "unknown name `lat`; did you mean `late`?"),
        ("count(late) > unheard", "unknown name `unheard`; known are broken, job, late, waiting"),
        ("any(lat)", "unknown name `lat`; did you mean `late`?"),
    ],
)
def test_what_is_no_condition_is_refused(tmp_path: Path, when: str, said: str) -> None:
    (found,) = refusals(tmp_path, when=when, links=LINKS)
    sentence, _, remedy = found.removeprefix("late/playbook.yaml:1: `when`: ").partition("; ")
    assert f"{sentence}; {remedy}".startswith(said), found
    assert remedy


@pytest.mark.parametrize(
    ("select", "said"),
    [
        ({"a": "b", "b": "stack.waits"}, "`select.a`: the selection `b` is defined further down; move it up"),
        ({"a": "b > 1", "b": "stack.waits"}, "`select.a`: the selection `b` is defined further down; move it up"),
        ({"a": "stack.waits and not a"}, "`select.a`: the selection `a` names itself; name selections above it"),
        ({"a": "broken"}, "`select.a`: `broken` is a selection of links, not"),
        ({"a": "any(stack.waits)"}, "`select.a`: `any(...)` is a condition over the job; "),
        ({"a": "count(stack.waits) > 1"}, "`select.a`: `count(...)` is a number of the job; "),
        ({"a": "unobserved"}, "`select.a`: unknown name `unobserved`; "),
        (
            {"a": "stack.waits", "b": "a == true"},
            "`select.b`: `a` is a selection, not a field; join it with `and`, `or` and `not`",
        ),
        ({"a": "waits"}, "`select.a`: unknown name `waits`; "),
        ({"true": "stack.waits"}, "the selection `true` has a reserved or duplicate name; rename it"),
        ({"null": "stack.waits"}, "the selection `null` has a reserved or duplicate name; rename it"),
        ({"not": "stack.waits"}, "the selection `not` has a reserved or duplicate name; rename it"),
        ({"and": "stack.waits"}, "the selection `and` has a reserved or duplicate name; rename it"),
        ({"in": "stack.waits"}, "the selection `in` has a reserved or duplicate name; rename it"),
        ({"item": "stack.waits"}, "the selection `item` has a reserved or duplicate name; rename it"),
        ({"ab": "stack.waits", "b": "abc"}, "`select.b`: unknown name `abc`; did you mean `ab`?"),
    ],
)
def test_what_is_no_selection_is_refused(tmp_path: Path, select: dict[str, str], said: str) -> None:
    found = refusals(tmp_path, select=select, links=LINKS, when="true", culprits=None, summary="x")
    assert found[0].removeprefix("late/playbook.yaml:1: ").startswith(said)
    assert "; " in found[0]
    assert not found[0].endswith("; ")


def test_a_selection_of_links_may_not_name_ranks(tmp_path: Path) -> None:
    found = refusals(tmp_path, links={"broken": "dead and late"})
    said = "`late` is a selection of ranks, not of links; name selections of links only"
    assert found[0] == f"late/playbook.yaml:1: `links.broken`: {said}"


def test_what_names_a_refused_selection_is_not_told_to_move_it(tmp_path: Path) -> None:
    """It is not further down: those that name it wait for it to be fixed."""
    select = {"late": "stack.wait", "waiting": "late or stack.waits"}
    first, *others = refusals(tmp_path, select=select, links={"broken": "deed"}, when="any(late) or any(broken)")
    assert first == "late/playbook.yaml:1: `select.late`: unknown field `wait`; did you mean `waits`?"
    assert others == [
        "late/playbook.yaml:1: `select.waiting`: the selection `late` has a problem of its own; fix that first",
        "late/playbook.yaml:1: `links.broken`: unknown name `deed`; did you mean `dead`?",
        "late/playbook.yaml:1: `when`: the selection `late` has a problem of its own; fix that first",
    ]


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ({"a": "b", "b": "dead"}, "`links.a`: the selection `b` is defined further down; move it up"),
        ({"a": "dead and a"}, "`links.a`: the selection `a` names itself; name selections above it"),
        ({"a": "dead", "b": "a == true"}, "`links.b`: `a` is a selection, not a field; "),
    ],
)
def test_what_is_no_selection_of_links_is_refused(tmp_path: Path, links: dict[str, str], said: str) -> None:
    (found,) = refusals(tmp_path, links=links)
    assert found.startswith(f"late/playbook.yaml:1: {said}")


@pytest.mark.parametrize(
    ("listing", "said"),
    [
        ("[r.rank for r in late if r.stack.op == 3]", "`==` compares text with a number, which are never equal; "),
        ("3", "is no list; name a list of the job's facts, or a selection"),
        ("job.stall.seconds", "is no list; name a list of the job's facts, or a selection"),
    ],
)
def test_what_is_no_list_is_refused(tmp_path: Path, listing: str, said: str) -> None:
    (found,) = refusals(tmp_path, evidence=[{"probe": "cpu", "each": listing, "text": "{{ item }}"}])
    assert found.startswith(f"late/playbook.yaml:1: `evidence.0.each`: {said}")
