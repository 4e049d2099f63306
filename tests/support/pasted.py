"""Pasted fragments with their labels (tests/data/pasted/GROUP/NAME.md), their mutations, and the score of a report."""

from __future__ import annotations

import random
import re
import tempfile
import textwrap
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from hangdoc.postmortem.report import INTERNAL_ERROR, Unrecognised
from hangdoc.verdict import Verdict
from tests.support.judge import reported
from tests.support.paths import DATA

PASTED = DATA / "pasted"
OPEN = PASTED / "open.yaml"  # fragments of group `own` that are not judged right yet: name -> reason
GROUPS = (
    "own",
    "blind",
    "held",
    "unseen",
    "fresh",
    "recent",
    "later",
    "sixth",
    "seventh",
    "untuned",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
    "thirteenth",
    "fourteenth",
    "fifteenth",
    "sixteenth",
    "seventeenth",
    "eighteenth",
    "nineteenth",
    "twentieth",
    "twentyfirst",
    "twentysecond",
    "twentythird",
    "twentyfourth",
    "twentyfifth",
    "twentysixth",
    "twentyseventh",
    "twentyeighth",
    "twentyninth",
    "thirtieth",
    "thirtyfirst",
    "thirtysecond",
    "thirtythird",
    "thirtyfourth",
    "thirtyfifth",
    "thirtysixth",
    "thirtyseventh",
    "thirtyeighth",
    "thirtyninth",
    "fortieth",
    "fortyfirst",
    "fortysecond",
    "fortythird",
    "fortyfourth",
    "fortyfifth",
    "fortysixth",
    "fortyseventh",
    "fortyninth",
    "fortyeighth",
    "fiftieth",
    "fiftyfirst",
    "fiftysecond",
    "fiftythird",
    "fiftyfourth",
    "fiftyfifth",
    "fiftysixth",
    "fiftyseventh",
    "fiftyeighth",
    "fiftyninth",
    "sixtieth",
    "sixtyfirst",
    "sixtythird",
)
CLASSES = (
    "collective_wait",
    "slow_compute",
    "network",
    "input_stall",
    "host_fault",
    "startup",
    "silent_divergence",
)
NEGATIVES = ("none", "undecidable")
RIGHT, SILENT, LOW_WRONG, WRONG = "right", "silent", "low wrong", "WRONG"
NO_HOST = (None, "", "unknown host")  # the host is not known: nobody is named
KEYS = {"class", "culprits", "hosts", "also", "source", "why"}


@dataclass(frozen=True, slots=True)
class Fragment:
    group: str
    name: str
    cls: str  # a class, `none` or `undecidable`
    culprits: frozenset[int]
    hosts: frozenset[str] | None  # None: the label names no host, and any host is accepted
    also: frozenset[str]  # ids of playbooks that are right whatever their class
    source: str
    why: str
    text: str

    @property
    def negative(self) -> bool:
        return self.cls in NEGATIVES

    @property
    def id(self) -> str:
        return f"{self.group}/{self.name}"


@dataclass(frozen=True, slots=True)
class Score:
    outcome: str  # RIGHT, SILENT, LOW_WRONG or WRONG
    said: str  # first finding in one line; empty: none

    @property
    def wrong(self) -> bool:
        return self.outcome == WRONG


def fragments(group: str | None = None) -> list[Fragment]:
    """Every fragment, or those of one group. Raises ValueError for a file of another form."""
    groups = GROUPS if group is None else (group,)
    return [_fragment(path) for name in groups for path in sorted((PASTED / name).glob("*.md"))]


def not_yet_right() -> dict[str, str]:
    """Names of the fragments of group `own` that are known to be judged otherwise, with the reason."""
    return yaml.safe_load(OPEN.read_text()) or {}


def _fragment(path: Path) -> Fragment:
    try:
        _, head, text = path.read_text().split("---\n", 2)
    except ValueError:
        raise ValueError(f"{path}: no front matter between two lines `---`") from None
    label = yaml.safe_load(head)
    if unknown := set(label) - KEYS:
        raise ValueError(f"{path}: unknown keys {sorted(unknown)}")
    if label["class"] not in (*CLASSES, *NEGATIVES):
        raise ValueError(f"{path}: unknown class {label['class']}")
    if not label.get("source") or not label.get("why") or not text.strip():
        raise ValueError(f"{path}: source, why or text is missing")
    hosts = frozenset(map(str, label["hosts"])) if label.get("hosts") else None
    culprits, also = frozenset(label.get("culprits") or ()), frozenset(label.get("also") or ())
    return Fragment(
        path.parent.name, path.stem, label["class"], culprits, hosts, also, label["source"], label["why"], text
    )


def verdicts(text: str) -> tuple[Verdict, ...]:
    """What `hangdoc report -` concludes; none where it recognises nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stdin"
        path.write_text(text, errors="surrogateescape")
        try:
            report = reported(path)
        except Unrecognised:
            return ()
    if defects := [problem for problem in report.problems if INTERNAL_ERROR in problem]:
        raise AssertionError(defects)
    return report.verdicts


def score(fragment: Fragment, judged: tuple[Verdict, ...]) -> Score:
    """The first finding of each job against the label. Any wrong one above low outweighs a right one."""
    firsts = [verdict.findings[0] for verdict in judged if verdict.findings]
    outcomes, said = [], []
    for finding in firsts:
        ranks = frozenset(culprit.rank for culprit in finding.culprits if culprit.rank is not None)
        hosts = frozenset(
            str(culprit.host) for culprit in finding.culprits if culprit.host not in NO_HOST and culprit.rank is None
        )
        fits = finding.cls == fragment.cls or finding.playbook in fragment.also
        named = ranks <= fragment.culprits and (fragment.hosts is None or hosts <= fragment.hosts)
        # A label may add the host of its ranks: who names these ranks has said it all.
        whole = fragment.hosts is None or hosts == fragment.hosts or bool(ranks)
        right = fits and named and ranks == fragment.culprits and whole
        meek = fits and named  # the right class and too few culprits: a conclusion not drawn, and no false accusation
        low = finding.confidence == "low"
        if fragment.negative:
            outcomes.append(RIGHT if low else WRONG)
        else:
            outcomes.append(RIGHT if right else SILENT if meek else LOW_WRONG if low else WRONG)
        names = ",".join(map(str, sorted(ranks))) or ",".join(sorted(hosts)) or "nobody"
        said.append(f"{finding.playbook} ({finding.cls}, {finding.confidence}): {names}")
    text = "; ".join(said)
    if not outcomes:
        return Score(RIGHT if fragment.negative else SILENT, text)
    worst = next(outcome for outcome in (WRONG, RIGHT, LOW_WRONG, SILENT) if outcome in outcomes)
    return Score(worst, text)


Mutation = Callable[[str, random.Random], str]


def mutated(fragment: Fragment, kind: str) -> str:
    """The text after a mutation; the same one each time."""
    return MUTATIONS[kind](fragment.text, random.Random(zlib.crc32(f"{fragment.id} {kind}".encode())))


def _prefixed(text: str, chance: random.Random) -> str:
    prefix = chance.choice(
        ["2026-03-14T09:26:53.589793Z ", "trainer-0 | ", "[2026-03-14 09:26:53] ", "train.log:", "    "]
    )
    return _each(text, lambda line: prefix + line)


def _wrapped(width: int) -> Mutation:
    def wrapped(text: str, chance: random.Random) -> str:
        return _each(text, lambda line: "\n".join(line[at : at + width] for at in range(0, len(line), width)) or line)

    return wrapped


def _wrapped_by_chat(text: str, chance: random.Random) -> str:
    return _each(text, lambda line: textwrap.fill(line, 100, break_long_words=False) if len(line) > 100 else line)


def _quoted(text: str, chance: random.Random) -> str:
    return _each(text, lambda line: f"> {line}")


def _cut(text: str, chance: random.Random) -> str:
    """The last line loses its end, as a scroll-back or a message limit cuts it."""
    text = text.rstrip("\n")
    last = text.rfind("\n") + 1
    return text[: last + max(1, (len(text) - last) * 9 // 10)]


def _glued(text: str, chance: random.Random) -> str:
    """One line in eight, at most four, loses its line feed: two ranks wrote to one pipe."""
    lines = text.rstrip("\n").split("\n")
    for _ in range(min(4, len(lines) // 8)):
        at = chance.randrange(len(lines) - 1)
        lines[at : at + 2] = [lines[at] + lines[at + 1]]
    return "\n".join(lines) + "\n"


def _block_lines(text: str) -> list[str]:
    return [block for block in re.split(r"\n[ \t]*\n", text.strip("\n")) if block.strip()]


def _shuffled(text: str, chance: random.Random) -> str:
    blocks = _block_lines(text)
    chance.shuffle(blocks)
    return "\n\n".join(blocks) + "\n"


def _one_rank_dropped(text: str, chance: random.Random) -> str:
    """Without one block, if it has three or more, else without one line that names a rank of several."""
    blocks = _block_lines(text)
    if len(blocks) >= 3:
        del blocks[chance.randrange(len(blocks))]
        return "\n\n".join(blocks) + "\n"
    ranks = sorted(set(re.findall(r"\[[Rr]ank ?(\d{1,5})\]", text)))
    if len(ranks) < 3:
        return text
    gone = re.compile(rf"\[[Rr]ank ?{chance.choice(ranks)}\]")
    return "".join(line for line in text.splitlines(keepends=True) if not gone.search(line))


def _each(text: str, change: Callable[[str], str]) -> str:
    return "\n".join(change(line) for line in text.rstrip("\n").split("\n")) + "\n"


MUTATIONS: dict[str, Mutation] = {
    "prefixed": _prefixed,
    "wrapped at 80": _wrapped(80),
    "wrapped by chat": _wrapped_by_chat,
    "quoted": _quoted,
    "cut": _cut,
    "glued": _glued,
    "shuffled": _shuffled,
    "rank dropped": _one_rank_dropped,
}
# What takes evidence away may take the conclusion or its culprit with it: it must not become a wrong one, no more.
LOSING = frozenset({"rank dropped"})


def mutation_scores(fragment: Fragment, kinds: tuple[str, ...] = tuple(MUTATIONS)) -> Iterator[tuple[str, Score]]:
    for kind in kinds:
        text = mutated(fragment, kind)
        if text != fragment.text:
            yield kind, score(fragment, verdicts(text))
