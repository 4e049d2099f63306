"""A hung job that several modules look at: it stands still, so it costs the machine nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from hangdoc.demo.harness import Trial, running
from tests.support.paths import HUNG
from tests.support.started import started


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The soak starts first: it takes as long as all others together, and leaves them the cores."""
    items.sort(key=lambda item: item.get_closest_marker("soak") is None)


@pytest.fixture(scope="session")
def hung() -> Iterator[Trial]:
    """Two ranks: rank 1 has left the loop, rank 0 waits for its gradients."""
    with started(partial(running, HUNG / "leaves_early.py", 2), "step 10") as trial:
        trial.wait_still(3)
        yield trial
