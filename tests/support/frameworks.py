"""Jobs of real frameworks, with what is true of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.support.paths import RECORDINGS, ROOT

FOLDER = ROOT / "tests" / "live" / "frameworks"
KEPT = RECORDINGS / "frameworks"


@dataclass(frozen=True)
class Truth:
    """What is wrong with a job: any of the classes and playbooks is right."""

    classes: tuple[str, ...]
    culprits: tuple[int, ...]
    playbooks: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    name: str
    framework: str
    truth: Truth | None  # None: healthy
    why: str
    script: Path
    ranks: int = 2
    launcher: str = "torchrun"  # torchrun, or self
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    until: str = r"loss"  # in the log, once the defect is there
    pause_s: float = 10.0  # from there to the first look
    wrong_today: str = ""  # why the verdict is wrong

    def __str__(self) -> str:
        return self.name

    @property
    def recording(self) -> Path:
        return KEPT / f"{self.name}.jsonl.zst"


@dataclass(frozen=True)
class Said:
    """What hangdoc said of a job, as far as it is scored."""

    status: str
    cls: str | None = None
    culprits: tuple[int, ...] = ()
    playbook: str | None = None
    confidence: str | None = None

    @classmethod
    def of(cls, verdict: Mapping[str, Any]) -> Said:
        """From the JSON of a verdict."""
        if not verdict["findings"]:
            return cls(verdict["status"])
        best = verdict["findings"][0]
        culprits = sorted(culprit["rank"] for culprit in best["culprits"] if culprit["rank"] is not None)
        return cls(verdict["status"], best["class"], tuple(culprits), best["playbook"], best["confidence"])

    def __str__(self) -> str:
        if self.playbook is None:
            return self.status
        return f"{self.status}: {self.playbook} {list(self.culprits)} {self.confidence} ({self.cls})"


@dataclass(frozen=True)
class Score:
    """How what was said compares with the truth."""

    group: bool  # healthy as healthy; the class of a broken job
    culprits: bool
    playbook: bool
    healthy_but_broken: bool
    wrong_with_high: bool  # a false alarm, or a class, culprit or playbook that is wrong, at high confidence

    @property
    def right(self) -> bool:
        return self.group and self.culprits and self.playbook


def score(truth: Truth | None, said: Said) -> Score:
    """Compare."""
    if truth is None:
        silent = said.status == "healthy" and said.playbook is None
        return Score(silent, silent, silent, False, said.confidence == "high")
    group = said.cls in truth.classes
    culprits = said.culprits == truth.culprits
    playbook = said.playbook in truth.playbooks
    wrong = not (group and culprits and playbook)
    return Score(group, culprits, playbook, said.status == "healthy", wrong and said.confidence == "high")


def jobs() -> Sequence[Job]:
    """Every job of jobs.yaml."""
    return [_job(entry) for entry in yaml.safe_load((FOLDER / "jobs.yaml").read_text())]


def _job(entry: dict[str, Any]) -> Job:
    truth = entry.pop("truth")
    script = FOLDER / "jobs" / f"{entry.pop('script', entry['name'])}.py"
    args = tuple(str(argument) for argument in entry.pop("args", ()))
    return Job(**entry, script=script, args=args, truth=None if truth == "healthy" else _truth(truth))


def _truth(entry: dict[str, Any]) -> Truth:
    classes = entry["class"] if isinstance(entry["class"], list) else [entry["class"]]
    return Truth(tuple(classes), tuple(entry["culprits"]), tuple(entry["playbooks"]))
