"""The same evidence gives the same first finding, whatever mail, chats, terminals and CI systems did to the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hangdoc.postmortem.report import Unrecognised
from tests.support.judge import judge, reported
from tests.support.paths import DATA
from tests.support.samples import SAMPLES
from tests.support.wrappings import BROKEN, WHOLE, Wrapping

CASES: dict[str, dict[str, Any]] = yaml.safe_load((DATA / "postmortem" / "cases.yaml").read_text(encoding="utf-8"))


def _is_dump(text: str) -> bool:
    """Nobody pastes a Flight Recorder dump."""
    return text.lstrip().startswith("{")


TEXTS = {name: case["files"] for name, case in CASES.items() if not any(map(_is_dump, case["files"].values()))} | {
    f"{path.parent.name}/{path.name}": {path.name: path.read_text(encoding="utf-8")}
    for folder in ("pyspy", "faulthandler", "gdb", "pystack", "logs")
    for path in sorted((SAMPLES / folder).iterdir())
    if path.suffix != ".json"
}

# Lines that are parts, each of which gets the prefix; a decision by the clock, which becomes that of the CI system; a
# person's words, which with a time in front are a program's.
BROKEN_BEFORE = (
    "broken-by-a-terminal",
    "the-clock-decides-which-error-came-first",
    "all-but-one-printed-the-next-line",
)
EACH_LINE = ("GitHub Actions", "gh run view", "GitLab", "Jenkins", "json-file")

GUESSES = {playbook.id for playbook in judge().library.playbooks if playbook.envelope.layer == "guess"}

First = tuple[str, str, tuple[tuple[str, str], ...]]


def first(folder: Path) -> First | None:
    """Status, playbook and culprits of the first finding that is no guess by the words of the text."""
    try:
        verdict = reported(folder).verdicts[0]
    except Unrecognised:
        return None
    found = next((one for one in verdict.findings if one.playbook not in GUESSES), None)
    if found is None:
        return verdict.status, "", ()
    return verdict.status, found.playbook, tuple(sorted((str(one.rank), one.site or "") for one in found.culprits))


def without_sites(one: First | None) -> object:
    return one and (*one[:2], [rank for rank, _ in one[2]])


def write(folder: Path, files: dict[str, str], wrap: Wrapping) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(wrap(text))
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, First | None]:
    folder = tmp_path_factory.mktemp("plain")
    return {name: first(write(folder / f"{at}x", files, str.encode)) for at, (name, files) in enumerate(TEXTS.items())}


def wrapped(how: Wrapping, folder: Path) -> dict[str, First | None]:
    return {name: first(write(folder / f"{at}x", files, how)) for at, (name, files) in enumerate(TEXTS.items())}


@pytest.mark.parametrize("how", WHOLE)
def test_same_finding_in_every_wrapping(how: str, plain: dict[str, First | None], tmp_path: Path) -> None:
    found = wrapped(WHOLE[how], tmp_path)
    differ = {name: (one, found[name]) for name, one in plain.items() if one != found[name]}
    for name in BROKEN_BEFORE if how in EACH_LINE else ():
        differ.pop(name, None)
    assert differ == {}


def misleads(plain: First | None, found: First | None) -> bool:
    """True if culprits are named, and not some of those of the same cause in the whole text."""
    if found is None or not found[1]:
        return False
    return plain is None or plain[:2] != found[:2] or not set(found[2]) < set(plain[2])


@pytest.mark.parametrize("how", BROKEN)
def test_broken_lines_turn_nothing_wrong(how: str, plain: dict[str, First | None], tmp_path: Path) -> None:
    """What was in the middle of a break may be lost, in few texts; no other cause may be named instead."""
    found = wrapped(BROKEN[how], tmp_path)
    differ = {
        name: (one, found[name]) for name, one in plain.items() if without_sites(one) != without_sites(found[name])
    }
    assert len(differ) <= 0.05 * len(plain), differ
    assert {name: (one, found) for name, (one, found) in differ.items() if misleads(one, found)} == {}
