from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from hangdoc.incident.incident import File, Incident
from hangdoc.render.html import page
from hangdoc.verdict import Considered
from tests.support.incidents import ENEMY, captured, full, recorded
from tests.support.pace import within
from tests.support.verdicts import ALL, dead_link, nameless, uneven

VOID = {"meta", "path", "br", "link", "img", "input"}
LOADS = {"src", "href", "srcset", "action", "data", "poster", "background", "ping", "xlink:href", "formaction"}
FOREIGN = {"script", "link", "img", "iframe", "object", "embed", "base", "form", "audio", "video", "use", "image"}
SECTIONS = [
    "What to do",
    "Evidence",
    "Stacks compared",
    "Ranks by phase",
    "Timeline",
    "Network",
    "Rules considered",
    "What hangdoc could not see",
    "Sources",
    "Before you share this page",
]


class Reader(HTMLParser):
    """A page's tags, in order, and its text; raises where one is not closed as it was opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []  # innermost tag, text
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", " ".join(data.split())))

    def of(self, tag: str) -> list[str]:
        return [text for inside, text in self.texts if inside == tag]


PAGES: dict[str, Callable[[], list[Incident]]] = {
    "uneven": lambda: [captured("uneven-batches")],
    "dead link": lambda: [captured("dead-link")],
    "healthy": lambda: [recorded("slow_steps")],
    "by hand": lambda: [Incident(verdict) for verdict in ALL],
    "hostile": lambda: [full(), full()],
    "nothing": list,
}


@pytest.fixture(params=PAGES)
def reader(request: pytest.FixtureRequest) -> Reader:
    return Reader(page(PAGES[request.param]()))


def test_loads_and_runs_nothing(reader: Reader) -> None:
    for tag, attributes in reader.tags:
        assert tag not in (
            "script",
            "link",
            "img",
            "iframe",
            "object",
            "embed",
            "base",
            "form",
            "audio",
            "video",
            "use",
        )
        assert not [name for name in attributes if name.startswith("on")]
        for name in LOADS & attributes.keys():
            assert re.fullmatch(r"#job-\d+", attributes[name] or "")
        if attributes.get("http-equiv"):
            assert attributes["content"] == "default-src 'none'; style-src 'unsafe-inline'"
    styles = " ".join([*reader.of("style"), *(value or "" for _, a in reader.tags if (value := a.get("style")))])
    assert "url(" not in styles
    assert "@import" not in styles


def test_can_be_read_by_everyone(reader: Reader) -> None:
    tags = reader.tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert all(a["aria-labelledby"] in ids for _, a in tags if "aria-labelledby" in a)
    levels = [int(tag[1]) for tag, _ in tags if re.fullmatch(r"h\d", tag)]
    assert all(after - before <= 1 for before, after in pairwise(levels))
    pictures = [a for tag, a in tags if tag == "svg"]
    assert all(a.get("aria-hidden") or (a.get("role") == "img" and a.get("aria-label")) for a in pictures)
    assert sum(tag == "table" for tag, _ in tags) == sum(tag == "caption" for tag, _ in tags)
    assert all(a.get("scope") == "col" for tag, a in tags if tag == "th")
    assert dict(tags[0][1]) == {"lang": "en"}
    assert len(reader.of("title")) == 1


def test_sections_are_in_order() -> None:
    reader = Reader(page([captured("uneven-batches")]))
    assert reader.of("h2") == SECTIONS
    assert reader.of("h1") == ["Ranks ran different numbers of batches"]
    assert reader.of("h3") == ["Culprit: rank 2", "Waiting: ranks 0-1"]


def test_says_what_the_verdict_says() -> None:
    incident = captured("uneven-batches")
    text = " ".join(text for _, text in Reader(page([incident])).texts)
    finding = incident.verdict.findings[0]
    told = [finding.summary, *finding.actions, "STALLED", "for 14 s", "high confidence", "6a03bb97bb744c57"]
    told += [proof.text for proof in finding.evidence if "`" not in proof.text]
    told += [
        "len(mine) = 646",
        "len(mine) = 647",
        "dist.barrier()",
        "loss.backward()",
        "0 → 2",
        "cgroup of ranks 0-2 not seen",
    ]
    assert [one for one in told if one not in text] == []
    assert "for step, batch in enumerate(batches):" in Reader(page([incident])).of("code")  # it stood in backticks


def test_other_findings_and_links() -> None:
    text = " ".join(text for _, text in Reader(page([Incident(dead_link())])).texts)
    assert "rank 3 (10.0.0.1:4210) -> rank 4 (10.0.0.2:5512)" in text
    assert "A firewall drops the traffic" in text
    assert "equally likely" in text
    assert "ptrace refused; run as root" in text


def test_hostile_text_stays_text() -> None:
    written = page([full()])
    reader = Reader(written)
    text = " ".join(text for _, text in reader.texts)
    assert "<script>alert(1)</script>" in text
    assert "{{ 7*7 }}" in text
    assert not [c for c in written if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co") and c != "\n"]
    assert "W" * 900 not in written
    assert len(written) < 200_000
    values = [value for _, attributes in reader.tags for value in attributes.values() if value]
    assert {value for value in values if "alert" in value} <= {a.get("aria-label") for _, a in reader.tags}


@pytest.mark.parametrize("part", ["verdict", "files", "problems", "rank_rows", "sides", "timeline"])
def test_every_text_of_an_incident_is_shown(part: str) -> None:
    """Else the test above proves nothing of it."""
    told, silent = full("NEEDLE"), full("")
    assert "NEEDLE" in page([replace(silent, **{part: getattr(told, part)})])
    assert ENEMY[:8] == "<script>"


@pytest.mark.slow("makes the evidence of 4096 ranks")
def test_thousands_of_ranks_are_light() -> None:
    files = tuple(File(f"logs/rank{i}.log", "training log", i, "0" * 16) for i in range(4096))
    captured("uneven-batches", 4096, 2731, 2)  # its facts and the rules are kept
    with within(2.0):
        written = page([replace(captured("uneven-batches", 4096, 2731, 2), files=files)])
    assert len(written) < 1_000_000
    assert "Culprit: rank 2731" in written
    assert len(Reader(written).tags) < 6_000


def test_a_grid_as_wide_as_its_ranks() -> None:
    reader = Reader(page([captured("uneven-batches")]))
    grid = next(a for tag, a in reader.tags if tag == "svg" and a.get("class") == "grid")
    assert grid["viewbox"] == "0 0 160 20"
    assert reader.of("text") == ["0", "1", "2"]


def test_rules_are_told_by_reason() -> None:
    verdict = replace(
        uneven(),
        considered=(
            Considered("a", "no", "its condition does not hold"),
            Considered("b", "unknown", "io of rank 2 not seen"),
            Considered("c", "no", "its condition does not hold"),
        ),
    )
    reader = Reader(page([Incident(verdict)]))
    assert reader.of("dt")[-2:] == ["io of rank 2 not seen", "its condition does not hold"]
    assert "Why 3 rules did not match" in reader.of("summary")
    assert "1 rule could not be evaluated, because evidence is missing:" in reader.of("p")


def test_what_it_may_be_has_a_section() -> None:
    reader = Reader(page([Incident(nameless())]))
    assert {"What is known", "What it may be"} <= set(reader.of("h2"))
    assert {"nccl 2.21.5", "no line reports an error of a link"} <= set(reader.of("li"))
    assert reader.of("span").count("against") == 1
