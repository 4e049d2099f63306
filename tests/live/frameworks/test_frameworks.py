"""Jobs of real frameworks, broken and healthy, as their users write them: `make frameworks`.

KEEP=1 keeps a recording of each for tests/replay/test_frameworks.py, OUT=DIR the verdicts that are wrong.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hangdoc.demo.harness import running
from tests.support.cli import watch_once
from tests.support.frameworks import Job, Said, jobs, score
from tests.support.started import started
from tests.tools.anonymize import here, rewrite

MAX_BYTES = 100_000  # of a recording that is kept
STARTED_S = 240  # time that a job gets until its defect is there: some frameworks take a minute to import
LOOKS = 4  # one, and again while it cannot tell
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "DO_NOT_TRACK": "1"}
INSTALLED = {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # for launchers that start `python`
    "TORCH_EXTENSIONS_DIR": str(Path(sys.prefix) / "extensions"),  # DeepSpeed's, which take minutes to build
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("job", jobs(), ids=str)
def test_job_is_judged_as_what_it_is(job: Job, tmp_path: Path, record_property: Any) -> None:
    run = partial(running, job.script, job.ranks, job.args, {**OFFLINE, **INSTALLED, **job.env}, job.launcher)
    with started(run, job.until, STARTED_S) as trial:
        time.sleep(job.pause_s)
        for look in range(LOOKS):
            told = watch_once(trial.launcher_pid, "--record", str(tmp_path / str(look))).verdicts
            said = Said.of(told[0]) if len(told) == 1 else Said(f"{len(told)} verdicts")
            if said.status != "unknown":
                break
        log = trial.text()
    scored = score(job.truth, said)
    record_property("row", (job, said, scored))
    keep(job, tmp_path / str(look))
    if not scored.right and os.environ.get("OUT"):
        folder = Path(os.environ["OUT"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{job.name}.json").write_text(json.dumps(told, indent=1))
        (folder / f"{job.name}.log").write_text(log)
    if job.wrong_today and not scored.right:
        pytest.xfail(job.wrong_today)
    assert scored.right, f"{said}\n{json.dumps(told, indent=1)}\n{log[-2000:]}"


def keep(job: Job, folder: Path) -> None:
    """Keep what was recorded, if that is wanted and it is small."""
    recordings = sorted(folder.glob("*.jsonl.zst"), key=lambda file: file.stat().st_mtime)
    if not os.environ.get("KEEP") or not recordings:
        return
    job.recording.parent.mkdir(exist_ok=True)
    rewrite(recordings[-1], job.recording, {str(Path.home()): "/home/user", **here()})
    if job.recording.stat().st_size > MAX_BYTES:
        job.recording.unlink()
