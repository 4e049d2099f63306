"""The reproducers and their variants: what is expected of each, and live runs compared with that.

Status and culprits are in the playbook, since `hangdoc demo` compares them; `tests/data/expected/ID.yaml` adds patterns
of the evidence, and variants: other jobs with the same failure. The playbooks themselves know no script.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from hangdoc.demo import reproducer
from hangdoc.demo.harness import Trial, TrialError
from hangdoc.rules.schema import Id, Pattern, Reproducer, Start
from tests.support.cli import watch_once, watching
from tests.support.paths import DATA
from tests.support.started import started

EXIT = {"stalled": 2, "failed": 2, "slow": 1, "diverging": 1}  # as DESIGN.md has them
EXPECTED = DATA / "expected"


class Variant(Start):
    """What it leaves out is as in the reproducer; without `args` or a `script` of its own, args are --variant NAME."""

    name: Id

    def applied(self, first: Reproducer) -> Reproducer:
        given = {key: getattr(self, key) for key in self.model_fields_set - {"name"}}
        args = {} if "script" in given else {"args": ("--variant", self.name)}
        return first.model_copy(update={**args, **given})


class Expectations(BaseModel):
    """One file of `tests/data/expected`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    evidence: tuple[Pattern, ...]
    variants: tuple[Variant, ...] = ()


def of(first: Reproducer, expected: Expectations) -> dict[str, Reproducer]:
    """The reproducer, by the name "", and its variants by theirs."""
    itself = first.model_copy(update={"expect": first.expect.model_copy(update={"evidence": expected.evidence})})
    return {"": itself, **{variant.name: variant.applied(itself) for variant in expected.variants}}


def variants(id: str) -> list[reproducer.BrokenJob]:
    """The reproducer of a playbook and then its variants, with all that is expected of them."""
    job = reproducer.broken(id)
    expected = Expectations.model_validate(yaml.safe_load((EXPECTED / f"{id}.yaml").read_text(encoding="utf-8")))
    return [
        replace(
            job,
            script=job.script.parent / told.script,
            spec=told,
            status=told.expect.status or job.status,
            variant=name,
        )
        for name, told in of(job.spec, expected).items()
    ]


def broken(id: str) -> reproducer.BrokenJob:
    """The reproducer alone."""
    return variants(id)[0]


@dataclass(frozen=True)
class Result:
    """What was said of one run of a reproducer."""

    job: reproducer.BrokenJob
    verdict: dict[str, Any]
    code: int  # exit code of the command
    seconds: float  # from the command line to the verdict

    @property
    def best(self) -> dict[str, Any]:
        """The first finding, empty where nothing was found."""
        return self.verdict["findings"][0] if self.verdict["findings"] else {}

    @property
    def said(self) -> str:
        """The playbook of the first finding; "(healthy)" and the like where there is none."""
        return str(self.best.get("playbook") or f"({self.verdict['status']})")

    def problems(self) -> dict[str, str]:
        """What is wrong with it, by kind: playbook, class, culprits, status, evidence."""
        expect = self.job.spec.expect
        culprits = sorted(c["rank"] for c in self.best.get("culprits", []) if c["rank"] is not None)
        lines = [line["text"] for line in self.best.get("evidence", [])]
        missing = [pattern for pattern in expect.evidence if not any(re.search(pattern, line) for line in lines)]
        compared = {
            "playbook": (self.said, self.job.playbook),
            "class": (self.best.get("class"), self.job.cls),
            "culprits": (culprits, sorted(expect.culprits)),
            "status": ((self.verdict["status"], self.code), (self.job.status, EXIT[self.job.status])),
            "evidence": (missing, []),
            "ranks": (len(self.verdict["job"]["ranks"]), self.job.spec.ranks),
        }
        return {kind: f"{said}, not {wanted}" for kind, (said, wanted) in compared.items() if said != wanted}

    def told(self) -> str:
        """Everything, for a person who wants to know why."""
        return json.dumps({"problems": self.problems(), "code": self.code, "verdict": self.verdict}, indent=1)


def run(job: reproducer.BrokenJob) -> Result:
    """Start it and judge it once it has gone wrong; raises TrialError where it does not run."""
    with started(job.running, "loss") as trial:
        return diagnose(job, trial)


def diagnose(job: reproducer.BrokenJob, trial: Trial, *options: str) -> Result:
    """What `watch --once` says; one that goes on is asked about again until there has been enough to see."""
    options = (*job.asking, *options)
    if job.spec.watch == "live":
        return follow(job, trial, *options)
    limit = time.monotonic() + job.spec.within_s
    reproducer.Log(trial, lambda line: None).follow(limit, reproducer.UNDER_WAY_S if job.goes_on else None)
    started = time.monotonic()
    while True:
        said = watch_once(trial.launcher_pid, *options)
        result = Result(job, said.verdict, said.code, time.monotonic() - started)
        if result.best or not job.goes_on or time.monotonic() > limit:
            return result


def follow(job: reproducer.BrokenJob, trial: Trial, *options: str) -> Result:
    """What the live watch says, which is there when it goes wrong; `seconds` count from when a rank was gone."""
    with watching(trial.launcher_pid, *options, seconds=job.spec.within_s) as watch:
        gone: datetime | None = None
        for event in watch.events():
            at = datetime.fromisoformat(event["time"])
            if event["event"] == "rank_exited":
                gone = gone or at
            verdict = event.get("verdict") or {}
            if verdict.get("status") in reproducer.GONE_WRONG:
                over = verdict["status"] == "failed"  # then the watch ends with the job
                code = watch.process.wait(30) if over else EXIT[verdict["status"]]
                return Result(job, verdict, code, (at - gone).total_seconds() if gone else 0.0)
    raise TrialError(f"the live watch saw nothing go wrong within {job.spec.within_s:.0f} s")
