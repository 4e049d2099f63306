"""Record a reproducer for the false-alarm matrix: `python -m tests.tools.capture ID` writes its capture.jsonl.zst."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from hangdoc.demo import reproducer
from tests.support import reproducers
from tests.support.paths import ROOT
from tests.support.started import started
from tests.tools.anonymize import here, rewrite

MAX_BYTES = 100_000


def capture(id: str) -> str:
    """Run, wait until it hangs, record until it is diagnosed; returns what was said."""
    job = reproducers.broken(id)
    with tempfile.TemporaryDirectory() as name, started(job.running, "loss") as trial:
        for _ in range(6):
            folder = Path(name) / "incident"
            result = reproducers.diagnose(job, trial, "--record", str(folder))
            if not result.problems():
                return keep(folder, id)
            print(result.problems())
            shutil.rmtree(folder, ignore_errors=True)
    raise SystemExit(f"{id} was not diagnosed: nothing kept")


def keep(folder: Path, id: str) -> str:
    """The recording becomes the playbook's capture."""
    recording = max(folder.glob("*.jsonl.zst"), key=lambda file: file.stat().st_mtime)  # the one that was diagnosed
    rewrite(recording, recording, here())
    size = recording.stat().st_size
    if size > MAX_BYTES:
        raise SystemExit(f"{size} bytes, more than {MAX_BYTES}: nothing kept")
    target = ROOT / "playbooks" / id / "capture.jsonl.zst"
    shutil.copyfile(recording, target)
    return f"{target}: {size} bytes"


if __name__ == "__main__":
    for wanted in sys.argv[1:] or reproducer.ids():
        print(capture(wanted))
