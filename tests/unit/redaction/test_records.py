"""No renderer of a report shows a secret, whatever text it came in; and nothing else is hidden."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from hangdoc.incident.incident import Incident
from hangdoc.redaction.records import LONGEST, hidden, mask_text, masked
from hangdoc.redaction.text import HIDDEN
from hangdoc.render.html import page
from hangdoc.render.json import verdict_line
from hangdoc.render.markdown import document
from hangdoc.render.terminal import show
from tests.support.incidents import LEAKS, SECRETS, captured, full, judged, recorded
from tests.support.pace import within
from tests.support.paths import ROOT

CAPTURES = sorted(path.parent.name for path in (ROOT / "playbooks").glob("*/capture.jsonl.zst"))


def terminal(incident: Incident) -> str:
    written = io.StringIO()
    show([incident.verdict], Console(file=written, width=2000, markup=False, highlight=False), incident.files)
    return written.getvalue()


RENDERERS: dict[str, Callable[[Incident], str]] = {
    "terminal": terminal,
    "json": lambda incident: verdict_line(incident.verdict),
    "markdown": lambda incident: document([incident.verdict], incident.files, incident.problems),
    "html": lambda incident: page([incident]),
}


@pytest.mark.parametrize("render", RENDERERS)
def test_no_renderer_shows_a_secret(render: str) -> None:
    shown = RENDERERS[render](full(LEAKS))
    assert all(secret in shown for secret in SECRETS)  # else this proves nothing
    shown = RENDERERS[render](masked(full(LEAKS)))
    assert [secret for secret in SECRETS if secret in shown] == []
    assert "redacted" in shown


@pytest.mark.parametrize("playbook", CAPTURES)
def test_what_a_report_needs_is_kept(playbook: str) -> None:
    verdict, _ = judged(ROOT / "playbooks" / playbook / "capture.jsonl.zst")
    assert masked(verdict) is verdict
    incident = captured(playbook)
    assert masked(incident) is incident


def test_counts_masked_texts() -> None:
    assert hidden(recorded("slow_steps")) == 0
    clean, leaky = full("x"), full(LEAKS)
    assert hidden(masked(clean)) == 0
    assert hidden(masked(replace(clean, problems=(LEAKS, "y", LEAKS)))) == 2
    assert hidden(masked(leaky)) > 30


def test_masks_names_in_mappings() -> None:
    assert masked({"a": (f"password: {SECRETS[1]}", 3, None)}) == {"a": (f"password: {HIDDEN}", 3, None)}


def test_long_texts_are_cut_and_cost_little() -> None:
    assert len(mask_text("x " * LONGEST)) == LONGEST
    with within(2.0):
        for text in ("token" * 200_000, "--secret" * 200_000, "a://b:" * 200_000, "Aa1/" * 200_000):
            mask_text(text)


def test_thousands_of_ranks_cost_little() -> None:
    verdict, _ = judged(ROOT / "playbooks" / "uneven-batches" / "capture.jsonl.zst", 4096, 2731, 2)
    with within(0.5):
        assert masked(verdict) is verdict
