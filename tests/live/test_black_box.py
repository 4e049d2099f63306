"""A hung job is killed, or ends by itself, or hangdoc is killed: what is on disk names the cause, as the watch did.

Each test takes about 25 s: torch starts, the job hangs, hangdoc is sure of it. `make black-box` does it many times, at
random moments.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.black_box import CAUSE, crash
from tests.support.requirements import met, torch


@pytest.mark.parametrize(
    ("how", "after_s", "outcome"),
    [
        ("timeout", 0.0, "failed"),
        ("ranks", 0.0, "killed"),
        ("launcher-term", 5.0, "killed_by_launcher"),
        ("hangdoc", 0.0, None),
    ],
)
def test_the_evidence_outlives(how: str, after_s: float, outcome: str | None, tmp_path: Path) -> None:
    met(torch())
    left = crash(how, after_s, tmp_path)
    (incident,) = left.incidents
    assert left.on_disk == [CAUSE], (left.stderr, left.reported, left.events, left.incidents)
    assert left.live in ([CAUSE], []), left.events  # the death of a rank is no second verdict
    assert (incident.outcome.kind if incident.outcome else None) == outcome, incident
    assert left.live == [CAUSE] or how == "hangdoc"
