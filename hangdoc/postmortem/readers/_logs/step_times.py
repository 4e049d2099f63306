"""How long the steps take in which torch.compile compiles again, and the other steps of a log.

torch prints a recompilation before the step in which it happens ends (TORCH_LOGS=recompiles; torch/_dynamo/guards.py),
and the script prints the time of the step after it. Where the two are pasted apart, the times tell the slow steps. What
was printed before the first step of a text, or in a gap of it, is not known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from statistics import median

from hangdoc.postmortem.readers._elided import elision

MAX_STEPS = 4_000
MAX_TEXT = 600  # characters of a line
# Where the times alone tell short steps from long ones: so many of each, and so much longer.
LEAST_SHORT, LEAST_LONG, LEAST_RATIO = 1, 2, 10.0
_RECOMPILED = re.compile(r"\bRecompiling function \S|\bhit config\.(?:recompile|cache_size)_limit\b")
_STEP = re.compile(
    r"\b(?:step|iter(?:ation)?|batch|it)s?\b[\s:=#\[]{1,4}\d{1,9}|\d{1,3}%\||^\W{0,4}\d{1,9} ?/ ?\d{1,9}\b",
    re.IGNORECASE,
)
_TIME = re.compile(
    r"(?<![\w.])(?P<value>\d{1,7}(?:\.\d{1,6})?) ?(?P<unit>ms|msec|s|secs?|seconds)(?:/(?:it|iter|step|batch))?\b(?!/)"
    r"|\b(?:time|dt|step_time|iter_time|elapsed|took)[\"']?[\s:=]{1,3}(?P<bare>\d{1,7}\.\d{1,6})(?![\d.]|\s?ms)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class StepPace:
    """Medians over the steps of a text, in seconds."""

    usual_s: float
    recompiling_s: float
    recompiling: int  # steps in which a recompilation was printed
    line: int  # of the last one
    text: str


@dataclass(slots=True)
class StepTimes:
    """Takes the lines of a text in order."""

    _usual: list[float] = field(default_factory=list)
    _slow: list[float] = field(default_factory=list)
    _unknown: list[float] = field(default_factory=list)  # there may have been a recompilation
    _recompiled: bool = False  # since the last step
    _whole: bool = False  # every line since the last step is known
    _last: tuple[int, str] = (0, "")

    def feed(self, text: str, number: int) -> None:
        text = text[:MAX_TEXT]
        if _RECOMPILED.search(text):
            self._recompiled = True
            return
        if elision(text):
            self._whole = False
            return
        if (
            len(self._usual) + len(self._slow) + len(self._unknown) >= MAX_STEPS
            or not _STEP.search(text)
            or not (time := _TIME.search(text))
        ):
            return
        seconds = float(time["value"] or time["bare"]) / (1000 if (time["unit"] or "").lower().startswith("m") else 1)
        if self._recompiled:
            self._slow.append(seconds)
        else:
            (self._usual if self._whole else self._unknown).append(seconds)
        if self._recompiled or not self._slow:
            self._last = number, text.strip()
        self._recompiled, self._whole = False, True

    @property
    def pace(self) -> StepPace | None:
        """None: no step time is known, or all of one kind."""
        usual, slow = self._usual or self._unknown, self._slow
        apart = median(slow) < median(usual) if slow and usual else self._recompiled and not slow
        if apart:  # the recompilations were pasted above or below the steps, so the times alone tell
            usual, slow = _parted([*self._unknown, *self._usual, *self._slow])
        if not slow or not usual:
            return None
        number, text = self._last
        return StepPace(median(usual), median(slow), len(slow), number, text)


def _parted(times: list[float]) -> tuple[list[float], list[float]]:
    """Short and long steps, if there are several of both and nothing in between; else all are short."""
    ordered = sorted(times)
    for at in range(LEAST_SHORT, len(ordered) - LEAST_LONG + 1):
        if ordered[at] >= LEAST_RATIO * ordered[at - 1]:
            return ordered[:at], ordered[at:]
    return ordered, []
