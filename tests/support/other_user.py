"""Processes of an unprivileged user, and the installed hangdoc that root runs beside them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.requirements import met

STRANGER = 65534  # nobody: owns nothing, belongs to no group of ours
READY = "ready"


@dataclass(frozen=True, slots=True)
class Stranger:
    """A running Python process of user STRANGER; `folder` is its working directory, which it owns."""

    process: subprocess.Popen[str]
    folder: Path

    @property
    def pid(self) -> int:
        return self.process.pid


@contextmanager
def stranger(
    source: str, *arguments: str, environment: dict[str, str] | None = None, folder: Path | None = None
) -> Iterator[Stranger]:
    """Run Python source as user STRANGER until the body ends.

    The source must print "ready" (`print("ready", flush=True)`) once it is as the test wants it, and then stay.
    Give it `RANK` and `WORLD_SIZE` in `environment`, and hangdoc takes it for a training rank.
    """
    met(None if os.geteuid() == 0 else "only root can start processes of another user")
    with tempfile.TemporaryDirectory(prefix="stranger") as made:
        home = folder or Path(made)
        os.chmod(made, 0o755)
        os.chown(home, STRANGER, STRANGER)
        script = Path(made, "job.py")
        script.write_text(source)
        process = subprocess.Popen(
            [interpreter(), str(script), *arguments],
            cwd=home,
            env={"PATH": os.defpath, "HOME": str(home), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            user=STRANGER,
            group=STRANGER,
            extra_groups=[],
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == READY, f"it ended with {process.wait(5)}"
            yield Stranger(process, home)
        finally:
            process.kill()
            process.wait()


@cache
def interpreter() -> str:
    """A Python that STRANGER may execute: ours, or the system's where ours lies in root's home."""
    for path in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        try:
            subprocess.run([path, "-c", ""], user=STRANGER, group=STRANGER, extra_groups=[], check=True, timeout=20)
        except (OSError, subprocess.SubprocessError):
            continue
        return path
    met("no Python that another user may run (apt-get install python3)")
    raise AssertionError("unreachable")


def as_stranger(group: int = STRANGER) -> list[str]:
    """A prefix that runs a command of this Python as user STRANGER.

    Where our Python lies in a closed home, such as root's, the command has a mount namespace of its own, in which only
    that Python is in the home.
    """
    met(None if os.geteuid() == 0 and shutil.which("setpriv") else "root and setpriv (util-linux) are needed")
    user = ["setpriv", f"--reuid={STRANGER}", f"--regid={group}", "--clear-groups"]
    python = Path(sys.base_prefix).resolve()
    closed = next((one for one in reversed(python.parents) if not one.stat().st_mode & 0o001), None)
    if closed is None:
        return user
    script = (
        f"m=$(mktemp -d) && mount --bind {python} $m && mount -t tmpfs -o mode=755 none {closed} &&"
        f' mkdir -p {python} && mount --move $m {python} && rmdir $m && exec "$@"'
    )
    return ["unshare", "--mount", "sh", "-c", script, "sh", *user]


def hangdoc(
    *arguments: str, limit_s: float = 60.0, environment: dict[str, str] | None = None, stdin: bytes | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the installed `hangdoc` (HANGDOC, else the one beside this interpreter) to its end; fails past `limit_s`."""
    command = os.environ.get("HANGDOC") or str(Path(sys.executable).parent / "hangdoc")
    done = subprocess.run(
        [command, *arguments],
        input=stdin or b"",
        capture_output=True,
        timeout=limit_s,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def peak_rss_bytes(pid: int) -> int:
    """The most memory that a running process has held so far: VmHWM of proc_pid_status(5)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
