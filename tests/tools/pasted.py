"""Score of `hangdoc report -` on the pasted fragments, per class and group: `make pasted`.

A negative, and a fragment whose cause nobody could decide, is right where nothing above low is found. Exits 1 if a
finding above low is wrong, or a mutation turns a right one into a wrong one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatch
from itertools import groupby

from rich.console import Console

from hangdoc.render import terminal
from tests.support.pasted import (
    CLASSES,
    GROUPS,
    LOW_WRONG,
    MUTATIONS,
    NEGATIVES,
    RIGHT,
    SILENT,
    WRONG,
    Fragment,
    Score,
    fragments,
    mutation_scores,
    score,
    verdicts,
)

Judged = Sequence[tuple[Fragment, Score]]
FIRST_SCREEN = 40  # lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="name or pattern; default: all")
    parser.add_argument("--group", choices=GROUPS)
    parser.add_argument("--mutations", action="store_true", help="judge every mutation as well")
    parser.add_argument("--held-out", action="store_true", help="judge each group by weights of words without its own")
    parser.add_argument("--show", action="store_true", help="print the text and the first screen of the verdict")
    asked = parser.parse_args()
    chosen = [
        one
        for one in fragments(asked.group)
        if not asked.names or any(fnmatch(one.name, name) or fnmatch(one.id, name) for name in asked.names)
    ]
    if not chosen:
        parser.error("no fragment of that name")
    judged = []
    for group, members in groupby(chosen, lambda one: one.group):
        with _held_out(group) if asked.held_out else nullcontext():
            for one in members:
                found = verdicts(one.text)
                judged.append((one, score(one, found)))
                _print_one(*judged[-1])
                if asked.show:
                    _show(one, found)
    for group in dict.fromkeys(one.group for one in chosen):
        _print_table(group, [(one, result) for one, result in judged if one.group == group])
    bad = sum(result.wrong for _, result in judged)
    if asked.mutations:
        bad += _print_mutations(judged)
    return 1 if bad else 0


@contextmanager
def _held_out(group: str) -> Iterator[None]:
    """Texts are judged by weights of words and signs that were learned without a group."""
    from tests.tools import learn_signs, learn_terms  # they import torch

    words = learn_terms.weights_without({group}, [learn_terms.text(one) for one in fragments()])
    with words, learn_signs.weights_without({group}):
        yield


def _print_one(one: Fragment, result: Score) -> None:
    wanted = one.cls if one.negative else f"{one.cls}: {','.join(map(str, sorted(one.culprits))) or 'nobody'}"
    # Progress, not the result: what is published are the tables.
    print(f"{result.outcome:9}  {one.id:48}  {wanted:26}  {result.said or '-'}", file=sys.stderr, flush=True)


def _show(one: Fragment, found: Sequence[object]) -> None:
    print("-" * 100, one.text.rstrip("\n"), "-" * 100, sep="\n")
    console = Console(width=120, color_system=None)
    for verdict in found:
        for line in terminal.lines(verdict, console)[:FIRST_SCREEN]:  # type: ignore[arg-type]
            console.print(line)
    print(f"{'-' * 100}\n{one.why}\n")


def _print_table(group: str, judged: Judged) -> None:
    print(f"\ngroup {group}: {len(judged)} fragments\n")
    print("| class | fragments | right | silent | low wrong | wrong | precision above low | recall |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for cls in (*CLASSES, *NEGATIVES):
        if part := [(one, result) for one, result in judged if one.cls == cls]:
            print(_row(cls, part))
    print(_row("all classes", [(one, result) for one, result in judged if not one.negative]))
    print(_row("all fragments", judged))
    print(_row("negatives", [(one, result) for one, result in judged if one.negative]))


def _row(name: str, judged: Judged) -> str:
    count = {kind: sum(result.outcome == kind for _, result in judged) for kind in (RIGHT, SILENT, LOW_WRONG, WRONG)}
    firm = [result for _, result in judged if any(f", {how})" in result.said for how in ("medium", "high"))]
    held = sum(not result.wrong for result in firm)
    precision = f"{held / len(firm):.2f} ({held}/{len(firm)})" if firm else "-"
    recall = f"{count[RIGHT] / len(judged):.2f}" if judged else "-"
    return f"| {name} | {len(judged)} | {' | '.join(map(str, count.values()))} | {precision} | {recall} |"


def _print_mutations(judged: Judged) -> int:
    """How many that were right are wrong after a mutation."""
    kept: dict[str, list[str]] = {kind: [] for kind in MUTATIONS}
    for one, before in judged:
        if before.outcome != RIGHT:
            continue
        for kind, after in mutation_scores(one):
            kept[kind].append(after.outcome)
            if after.outcome != RIGHT:
                print(f"{after.outcome:9}  {kind:16}  {one.id:48}  {after.said or '-'}", flush=True)
    print("\n| mutation | fragments right before | right | silent | low wrong | wrong | kept |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for kind, outcomes in kept.items():
        counts = [outcomes.count(outcome) for outcome in (RIGHT, SILENT, LOW_WRONG, WRONG)]
        share = f"{counts[0] / len(outcomes):.2f}" if outcomes else "-"
        print(f"| {kind} | {len(outcomes)} | {' | '.join(map(str, counts))} | {share} |")
    return sum(outcomes.count(WRONG) for outcomes in kept.values())


if __name__ == "__main__":
    sys.exit(main())
