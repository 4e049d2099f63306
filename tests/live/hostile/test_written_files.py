"""What hangdoc writes as root: nobody else reads it, nobody else chooses where, and no full disk costs a verdict."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hangdoc.verdict import EXIT
from tests.support.other_user import STRANGER, hangdoc, stranger
from tests.support.paths import ROOT
from tests.support.requirements import met

CAPTURE = ROOT / "playbooks" / "uneven-batches" / "capture.jsonl.zst"
SLEEPER = "import time\nprint('ready', flush=True)\ntime.sleep(600)\n"
FULL = """
disk=$0 old=$1 left=$2
shift 2
mount -t tmpfs -o size=64k,mode=700 none "$disk" && cp "$old" "$disk/page.html" || exit 99
head -c 1000000 /dev/zero > "$disk/filler" 2>/dev/null
"$@"
code=$?
cp "$disk/page.html" "$left"
exit $code
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that STRANGER owns."""
    with tempfile.TemporaryDirectory(prefix="stranger") as name:
        os.chmod(name, 0o755)
        os.chown(name, STRANGER, STRANGER)
        yield Path(name)


def page(path: Path) -> subprocess.CompletedProcess[str]:
    done = hangdoc("report", str(CAPTURE), "--html", str(path))
    assert "uneven-batches" in done.stdout
    assert done.returncode == 2
    return done


@pytest.mark.parametrize("name", ["page.html", "inner/page.html"])
def test_a_page_is_not_written_through_a_strangers_link(folder: Path, tmp_path: Path, name: str) -> None:
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "page.html").write_text("ours")
    link = folder / name.split("/")[0]
    link.symlink_to(ours / "page.html" if link.suffix else ours)
    os.lchown(link, STRANGER, STRANGER)
    assert "could not write the page" in page(folder / name).stderr
    assert (ours / "page.html").read_text() == "ours"
    assert os.listdir(ours) == ["page.html"]
    assert os.listdir(folder) == [link.name]


def test_a_page_is_for_its_owner_alone_and_replaces_what_a_stranger_laid_there(folder: Path) -> None:
    (folder / "page.html").write_text("theirs")
    (folder / "page.html").chmod(0o666)
    os.chown(folder / "page.html", STRANGER, STRANGER)
    page(folder / "page.html")
    status = (folder / "page.html").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o600, os.geteuid())
    assert "uneven-batches" in (folder / "page.html").read_text()


def test_a_recording_is_not_made_behind_a_strangers_link(folder: Path, tmp_path: Path) -> None:
    (folder / "link").symlink_to(tmp_path)
    os.lchown(folder / "link", STRANGER, STRANGER)
    with stranger(SLEEPER, environment={"RANK": "0", "WORLD_SIZE": "1"}) as rank:
        done = hangdoc("watch", "--once", "--json", "--pids", str(rank.pid), "--record", str(folder / "link" / "new"))
    assert json.loads(done.stdout)["job"]["ranks"][0]["pid"] == rank.pid
    assert "the recording in " in done.stderr
    assert "symbolic link of another user" in done.stderr
    assert os.listdir(tmp_path) == []


def on_a_full_disk(disk: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run hangdoc with a full file system on `disk`, in mounts of its own; and what page is there at the end."""
    met(None if shutil.which("unshare") else "no unshare (apt-get install util-linux)")
    command = os.environ.get("HANGDOC") or str(Path(sys.executable).parent / "hangdoc")
    disk.mkdir()
    old, left = disk.with_name("old.html"), disk.with_name("left.html")
    old.write_text("the old page")
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", FULL, str(disk), str(old), str(left), command, *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 99, done.stderr
    return done, left.read_text()


def test_a_full_disk_keeps_the_old_page_and_the_verdict(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    done, left = on_a_full_disk(disk, "report", str(CAPTURE), "--html", str(disk / "page.html"))
    assert "uneven-batches" in done.stdout
    assert done.returncode == 2
    assert "could not write the page" in done.stderr
    assert "No space left on device" in done.stderr
    assert left == "the old page"


def test_a_full_disk_costs_watch_once_no_verdict(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with stranger(SLEEPER, environment={"RANK": "0", "WORLD_SIZE": "1"}) as rank:
        pids = ("--pids", str(rank.pid))
        done, _ = on_a_full_disk(disk, "watch", "--once", "--json", *pids, "--record", str(disk / "incidents"))
    assert done.returncode == EXIT[json.loads(done.stdout)["status"]]
    assert [line for line in done.stderr.splitlines() if "has stopped" in line] == [
        f"hangdoc: the recording in {disk / 'incidents'} has stopped: No space left on device; "
        "the watch goes on without it"
    ]


def test_a_full_disk_ends_no_live_watch(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    brief = "import time\nprint('ready', flush=True)\ntime.sleep(6)\n"
    with stranger(brief, environment={"RANK": "0", "WORLD_SIZE": "1"}) as rank:
        arguments = ("watch", "--json", "--pids", str(rank.pid), "--record", str(disk / "incidents"))
        done, _ = on_a_full_disk(disk, *arguments)
    events = [json.loads(line)["event"] for line in done.stdout.splitlines()]
    assert events[0] == "started"
    assert events[-1] == "job_ended"
    assert done.stderr.count("has stopped: No space left on device") == 1


def test_a_folder_that_is_removed_meanwhile_ends_no_watch(tmp_path: Path) -> None:
    folder = tmp_path / "incidents"
    brief = f"""
import os, shutil, time
print('ready', flush=True)
while not os.path.exists({str(folder)!r}): time.sleep(0.1)
time.sleep(600)
"""
    with stranger(brief, environment={"RANK": "0", "WORLD_SIZE": "1"}) as rank:
        command = os.environ.get("HANGDOC") or str(Path(sys.executable).parent / "hangdoc")
        arguments = [command, "watch", "--json", "--pids", str(rank.pid), "--record", str(folder)]
        watch = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert watch.stdout is not None
        assert json.loads(watch.stdout.readline())["event"] == "started"
        shutil.rmtree(folder)
        rank.process.kill()
        out, said = watch.communicate(timeout=30)
    assert json.loads(out.splitlines()[-1])["event"] == "job_ended"
    assert "Traceback" not in said
    assert [path.suffix for path in folder.iterdir()] == [".zst"]
