"""A container with a systemd of its own: the machine's files below an overlay, PIDs and network apart.

`chmod` and files written in it stay in the overlay. Only basic.target is started: no service of the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hangdoc.system import procfs
from tests.support.polling import until
from tests.support.requirements import commands, met

START_S = 60.0


@dataclass(frozen=True, slots=True)
class Container:
    """A booted container: its root as seen from here, and the PID of its systemd."""

    root: Path
    leader: int

    def command(self, *words: str) -> list[str]:
        """A command in it, as its root."""
        return ["nsenter", "--target", str(self.leader), "--all", "--", *words]

    def run(self, *words: str, limit_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words), capture_output=True, text=True, timeout=limit_s, check=False)

    def property(self, unit: str, name: str) -> str:
        """A property of a unit, as `systemctl show` prints it."""
        return self.run("systemctl", "show", unit, f"--property={name}", "--value").stdout.strip()


@contextmanager
def container(*capabilities: str) -> Iterator[Container]:
    """A container, with `capabilities` besides those of systemd-nspawn; it ends with the body."""
    met(None if os.geteuid() == 0 else "only root can boot a container")
    met(commands(("systemd-nspawn", "nsenter", "mount"), "systemd systemd-container util-linux mount"))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hangdoc-container-")))
        _mount(stack, folder, "tmpfs", "tmpfs")  # the upper layer must not lie on an overlay
        for name in ("upper", "work", "root"):
            (folder / name).mkdir()
        layers = f"lowerdir=/,upperdir={folder}/upper,workdir={folder}/work"
        _mount(stack, folder / "root", "overlay", "overlay", "-o", layers)
        (folder / "root/etc/machine-id").write_text("uninitialized\n")
        # What a watch on this machine kept: systemd would move it, and cannot move a folder of the lower layer.
        shutil.rmtree(folder / "root/var/lib/hangdoc", ignore_errors=True)
        # It empties /tmp, where the checkout may lie.
        (folder / "root/etc/systemd/system/systemd-tmpfiles-setup.service").symlink_to("/dev/null")
        said = stack.enter_context((folder / "said").open("w+"))
        process = subprocess.Popen(
            [
                "systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network", "--boot",
                f"--directory={folder}/root", f"--machine=hangdoc-{os.getpid()}", "--console=pipe",
                f"--capability={','.join(capabilities)}", "systemd.unit=basic.target",
            ],
            env={**os.environ, "SYSTEMD_NSPAWN_TMPFS_TMP": "0"},
            stdin=subprocess.DEVNULL, stdout=said, stderr=said,
        )  # fmt: skip
        stack.callback(process.wait, 30)
        stack.callback(_end, process)
        booted = until(lambda: _booted(process, folder), within_s=START_S)
        assert booted is not None
        yield booted


def _booted(process: subprocess.Popen[bytes], folder: Path) -> Container | None:
    """The container once it has booted. At first, systemd-nspawn has a child that makes the namespaces, and ends."""
    assert process.poll() is None, (folder / "said").read_text()
    boxes = [Container(folder / "root", leader) for leader in procfs.children(process.pid)]
    return next((box for box in boxes if box.property("basic.target", "ActiveState") == "active"), None)


def _mount(stack: ExitStack, target: Path, *words: str) -> None:
    kind, source, *options = words
    subprocess.run([shutil.which("mount") or "mount", "-t", kind, *options, source, str(target)], check=True)
    stack.callback(subprocess.run, ["umount", "--lazy", str(target)], check=False)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Its systemd's end is that of all its processes."""
    for leader in procfs.children(process.pid):
        os.kill(leader, 9)
    process.kill()
