"""Jobs that have come as far as a test needs before hangdoc looks at them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from hangdoc.demo.harness import Trial, TrialError


@contextmanager
def started(run: Callable[[], AbstractContextManager[Trial]], until: str, within_s: float = 90) -> Iterator[Trial]:
    """The job of `run` once its log matches `until`; raises TrialError.

    A job that hangs or dies earlier is run once more: nobody has looked at it yet, so torch or the host failed. About
    one DataLoader in thousands forks at a bad moment, for instance. A warning shows the first run with its stacks.
    """
    with run() as trial:
        try:
            trial.wait_log(until, within_s)
        except TrialError as error:
            warnings.warn(f"a job is run once more: {error}", stacklevel=3)
        else:
            yield trial
            return
    with run() as trial:
        trial.wait_log(until, within_s)
        yield trial
