"""Records a reproducer: `python tests/capture.py ID` makes playbooks/ID/capture.jsonl.zst (the false-alarm matrix)."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from hangdoc import demo  # noqa: E402
from watching import hangdoc  # noqa: E402

MOST_BYTES = 100_000


def capture(id: str) -> str:
    """Run, wait until it hangs, record until it is diagnosed; returns what was said."""
    job = demo.broken(id)
    with tempfile.TemporaryDirectory() as name, job.running() as trial:
        log = demo.Log(trial, print)
        for _ in range(6):
            log.follow(time.monotonic() + job.told.within_s)
            folder = Path(name) / "incident"
            done = hangdoc("watch", "--once", "--pids", str(trial.launcher_pid), "--record", str(folder))
            print(done.stdout, done.stderr)
            if re.search(rf"^\s+{re.escape(id)}\s", done.stdout, re.MULTILINE):
                return keep(folder, id)
            shutil.rmtree(folder)
    raise SystemExit(f"{id} was not diagnosed: nothing kept")


def keep(folder: Path, id: str) -> str:
    """The recording becomes the playbook's capture."""
    (recording,) = folder.glob("*.jsonl.zst")
    size = recording.stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"{size} bytes, more than {MOST_BYTES}: nothing kept")
    target = ROOT / "playbooks" / id / "capture.jsonl.zst"
    shutil.copyfile(recording, target)
    return f"{target}: {size} bytes"


if __name__ == "__main__":
    for wanted in sys.argv[1:] or demo.ids():
        print(capture(wanted))
