"""A user without rights on a node with a root daemon: a verdict on their own job, and not a word about another's.

A head node that is lost costs the daemon of a node nothing: it goes on and reports what it can judge alone.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hangdoc.evidence import Target
from hangdoc.fleet import protocol
from tests.support.cli import HANGDOC
from tests.support.daemon import daemon, job, script
from tests.support.other_user import STRANGER, as_stranger
from tests.support.paths import ROOT
from tests.support.polling import until

pytestmark = pytest.mark.slow("a daemon, two jobs and a stall: 40 s")

OTHER_GROUP = 65533  # ptrace(2) asks for equal groups, too: with another one, a user may not read own ranks
START = """
import json, sys
from pathlib import Path
from tests.benchmarks import short_jobs
import random
script = Path(sys.argv[1])
job = short_jobs.started(script.parent, random.randrange(1, 10_000), 2, script)
print(json.dumps([job.name, *(rank.pid for rank in job.ranks)]), flush=True)
sys.stdin.read()
for rank in job.ranks:
    rank.kill()
"""


@contextmanager
def job_of_stranger(script: Path) -> Iterator[tuple[str, list[int]]]:
    """A job of two ranks of STRANGER, who runs a copy of this script: its name and the PIDs."""
    with tempfile.TemporaryDirectory(prefix="stranger", dir="/tmp") as folder:
        os.chown(folder, STRANGER, STRANGER)
        own = shutil.copy(script, folder)
        process = subprocess.Popen(
            [*as_stranger(), sys.executable, "-c", START, own], cwd=ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "HOME": folder},
        )  # fmt: skip
        try:
            assert process.stdout is not None
            name, *pids = json.loads(process.stdout.readline())
            yield name, pids
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        finally:
            process.communicate("", 20)


def as_user(path: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*as_stranger(OTHER_GROUP), *HANGDOC, *arguments], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "HANGDOC_SOCKET": path, "HOME": "/nonexistent"},
    )  # fmt: skip


def verdicts(path: str) -> tuple[int, list[dict[str, Any]], str]:
    process = as_user(path, "watch", "--once", "--json")
    out, err = process.communicate("", 60)
    return process.returncode, [json.loads(line) for line in out.splitlines()], err


def test_a_user_without_rights_gets_a_verdict_on_own_jobs_only(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="hangdoc-socket", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        path = f"{folder}/hangdoc.sock"
        config = f'[metrics]\nport = 0\n[daemon]\nsocket = "{path}"\n'
        with (
            job(tmp_path) as roots,
            job_of_stranger(script(tmp_path)) as (name, pids),
            daemon(tmp_path, config) as start,
        ):
            code, found, err = verdicts(path)
            assert (code, found) == (3, []), "without a daemon, nothing is seen"
            running = start()
            for one in (roots.name, name):
                running.says(f"job {one}: healthy")
            hub = as_user(path, "agent")  # the arm of a head node, which is lost in the middle of a question
            assert hub.stdin is not None
            assert hub.stdout is not None
            hub.stdout.readline()
            hub.stdin.write('{"do":"look","id":1}\n')
            hub.stdin.flush()
            hub.kill()
            hub.communicate()
            os.kill(pids[1], signal.SIGSTOP)
            running.says(f"job {name}: stalled: A rank is stopped")

            code, found, err = verdicts(path)
            assert code == 2, (found, err)
            assert "asks the daemon" in err
            (verdict,) = found
            assert verdict["job"]["id"] == name
            best = verdict["findings"][0]
            assert (best["playbook"], best["confidence"]) == ("stopped-process", "high"), verdict
            assert [culprit["pid"] for culprit in best["culprits"]] == [pids[1]]
            assert roots.name not in json.dumps(found) + err

            agent = as_user(path, "agent")
            out, err = agent.communicate('{"do":"look","id":7}\n', 60)
            hello, line, *_ = out.splitlines()
            assert protocol.parse(hello.encode(), protocol.Hello).schema == protocol.SCHEMA
            answer = protocol.parse(line.encode(), protocol.Answer)
            assert (answer.to, len(answer.ranks)) == (7, 2), err
            assert roots.name not in line
            shown = {msgspec.json.decode(answer.parts[rank.target], type=Target).pid for rank in answer.ranks}
            assert not shown & {rank.pid for rank in roots.ranks}

            running.end(signal.SIGKILL)
            until(lambda: running.process.poll() is not None)
            code, found, err = verdicts(path)
            assert (code, found) == (3, []), "a daemon that has gone is no error"
