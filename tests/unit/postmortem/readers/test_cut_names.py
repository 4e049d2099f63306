"""Host names of which somebody cut off the beginning."""

from __future__ import annotations

import pytest

from hangdoc.postmortem.readers._text_source import cleaned

LINE = ":811:902 [0] NCCL WARN NET/IB : mlx5_0:1 Got async event : port error"


@pytest.mark.parametrize(
    ("name", "other", "expected"),
    [
        ("...-17", "peer gpu17<5184>", "gpu17"),
        ("\u2026h08", "ssh rack2-h08 and rack2-h09", "rack2-h08"),
        ("...08", "an08 and cq08", "\u202608"),  # two hosts have this end
        ("...17", "gpu117", "\u202617"),  # another number
        ("gpu17", "gpu18", "gpu17"),
    ],
)
def test_a_cut_name_is_that_of_the_only_host_with_its_end(name: str, other: str, expected: str) -> None:
    assert next(line.text for line in cleaned(f"{name}{LINE}\n{other}\n")) == f"{expected}{LINE}"
