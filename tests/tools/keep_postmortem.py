"""Keep what a job left (see tests.benchmarks.post_mortem) as sample data: small, without paths of this machine.

python -m tests.tools.keep_postmortem FOLDER ...
"""

from __future__ import annotations

import pickle
import re
import sys
from pathlib import Path
from typing import Any

from tests.support.paths import DATA, ROOT

KEPT = DATA / "postmortem" / "kept"
ENTRIES = 12  # newest of each Flight Recorder
HERE = (
    (re.compile(re.escape(str(ROOT)) + r"/playbooks/[\w-]+/reproducer\w*\.py"), "/job/train.py"),
    (re.compile(re.escape(sys.prefix)), "/opt/env"),
    (re.compile(re.escape(sys.base_prefix)), "/usr"),
    (re.compile(r"reproducer\w*\.py"), "train.py"),
)  # fmt: skip
NOISE = re.compile(r"^(?:\[\w+\]:)?(?:#\d+ |.*\bloss \d|.*hostname of the client socket|\s*\^+$)")
OURS = "/impatient/"


def nameless(text: str) -> str:
    for path, name in HERE:
        text = path.sub(name, text)
    return text


def lines(text: str) -> str:
    """Without what says nothing: steps, C++ frames; and without the collector's own frames."""
    kept = [line for line in nameless(text).splitlines() if not NOISE.match(line) and OURS not in line]
    return "\n".join(kept) + "\n"


def dump(data: bytes) -> bytes:
    """Of a Flight Recorder of this machine's own jobs: the newest entries."""
    trace: dict[str, Any] = pickle.loads(data)
    trace["entries"] = trace["entries"][-ENTRIES:]
    for frame in {id(frame): frame for entry in trace["entries"] for frame in entry["frames"]}.values():
        frame["filename"] = nameless(frame["filename"])
    return pickle.dumps(trace, protocol=2)


def keep(folder: Path) -> None:
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size):
        at = re.sub(r"logs/[^/]+/attempt", "logs/run/attempt", file.relative_to(folder).as_posix())
        target = KEPT / folder.name / at
        target.parent.mkdir(parents=True, exist_ok=True)
        data = file.read_bytes()
        target.write_bytes(dump(data) if "trace_rank" in file.name else lines(data.decode(errors="replace")).encode())


if __name__ == "__main__":
    for name in sys.argv[1:]:
        keep(Path(name))
