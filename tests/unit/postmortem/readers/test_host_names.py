"""Names and numbers of hosts and ranks, as people fold them."""

from __future__ import annotations

import pytest

from hangdoc.postmortem.readers._host_names import listed_numbers, prompt_of
from hangdoc.postmortem.readers._owner_hints import MAX_COMPANIONS


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0, 2-4 and 7", (0, 2, 3, 4, 7)),
        ("1 to 3", (1, 2, 3)),
        ("4-2", ()),
        (f"0-{MAX_COMPANIONS}", ()),
        (f"0-{MAX_COMPANIONS - 1}, 9000", ()),
    ],
)
def test_listed_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert listed_numbers(text, MAX_COMPANIONS) == numbers


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("[trn-b]$ iostat -x", "trn-b"),
        ("node-c# dmesg | tail", "node-c"),
        ("[gn12]$ ps aux", "gn12"),
        ("[ops@trn-b ~]$ ps aux", "trn-b"),
        ("[sudo]$ ps aux", None),
        ("[base]$ python train.py", None),
        ("[1]$ ps aux", None),
        ("[rank-a]$ ps aux", None),
        ("[my-repo]$ python train.py", None),
        ("[trn-b] $HOME is full", None),
        ("plan-b% of it", None),
    ],
)
def test_host_of_prompt(text: str, host: str | None) -> None:
    found = prompt_of(text)
    assert (found.host if found else None) == host
