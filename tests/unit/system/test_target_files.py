"""Files named by another process: inside its root, with its user's rights, and never blocking."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hangdoc.system import target_files
from hangdoc.system.target_files import TargetFiles, names, open_place, read_failure, rights_of, walk
from tests.support.polling import until
from tests.support.requirements import met

ROOT = os.geteuid() == 0
OTHER, GROUP = 54321, 54322  # a user and a group that own nothing here
SLEEP = "import sys, time; print('ready', flush=True); time.sleep(600)"


def need_root() -> None:
    met(None if ROOT else "only root can start processes of another user or root")


@contextmanager
def process(*command: str, **options: object) -> Iterator[TargetFiles]:
    """The files of a process that has said that it is ready."""
    started = subprocess.Popen(command or (sys.executable, "-c", SLEEP), stdout=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload]
    try:
        assert started.stdout.readline().strip() == "ready"
        yield TargetFiles(started.pid)
    finally:
        started.kill()
        started.wait()


@contextmanager
def of_user(folder: Path, **options: object) -> Iterator[TargetFiles]:
    need_root()
    with process(
        "/bin/sh", "-c", "echo ready; exec sleep 600", user=OTHER, group=OTHER, cwd=folder, **options
    ) as files:
        yield files


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    """A folder that every user may enter."""
    for folder in (tmp_path, *list(tmp_path.parents)[:-2]):
        folder.chmod(0o755)
    return tmp_path


@pytest.fixture(params=["openat2", "walk"])
def resolver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which a path is followed: by the kernel, and for kernels without openat2."""

    def absent(*_: object) -> int:
        ctypes.set_errno(errno.ENOSYS)
        return -1

    if request.param == "walk":
        monkeypatch.setattr(target_files, "_openat2", absent)
    return str(request.param)


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fifo", "a FIFO"),
        ("socket", "a socket"),
        (".", "a folder"),
        ("/dev/zero", "a device"),
        ("/dev/null", "a device"),
        ("link", "a FIFO"),
        ("a\0b", "NUL"),
    ],
)
def test_only_regular_files_are_opened(tmp_path: Path, name: str, said: str) -> None:
    import socket

    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    with socket.socket(socket.AF_UNIX) as server, process(cwd=tmp_path) as files:
        server.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match=said):
            files.read(name, 10)


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize("name", ["/dev/stdin", "/proc/self/fd/0", "/proc/self/environ", "/proc/thread-self/maps"])
def test_nothing_of_hangdoc_itself_is_read(name: str) -> None:
    with process() as files, suppress(OSError):
        assert files.read(name, 100).data == b""


@pytest.mark.usefixtures("resolver")
def test_a_file_is_read_up_to_the_bound(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"0123456789")
    with process(cwd=tmp_path) as files:
        assert files.read(str(tmp_path / "data"), 4).data == b"0123"
        assert files.read("data", 100).data == b"0123456789"
        assert files.read("data", 100).status.st_size == 10
        assert files.read("../" + tmp_path.name + "/data", 100).data == b"0123456789"
        assert files.names(".", 10) == ["data"]
        assert len(TargetFiles(files.pid).names("/etc", 3)) == 3
        with pytest.raises(FileNotFoundError):
            files.stat("nowhere")
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        files.stat("data")


@pytest.mark.usefixtures("resolver")
def test_links_are_followed_inside_the_targets_root(tmp_path: Path) -> None:
    """As in a container: an absolute link, and `..` at the top, stay in it."""
    need_root()
    outside, inside = tmp_path / "etc", tmp_path / "root" / "etc"
    outside.mkdir()
    inside.mkdir(parents=True)
    (outside / "name").write_text("outside")
    (inside / "name").write_text("inside")
    (inside / "absolute").symlink_to("/etc/name")
    (inside / "upwards").symlink_to("../../../../../../../../etc/name")
    (inside / "ours").symlink_to(outside / "name")
    chroot = f"import os; os.chroot({str(tmp_path / 'root')!r}); os.chdir('/etc')"
    with process(sys.executable, "-c", f"{chroot}; {SLEEP}") as files:
        for name in (
            "/etc/name",
            "/etc/absolute",
            "/etc/upwards",
            "/../../etc/name",
            "absolute",
            "name",
            "../etc/name",
        ):
            assert files.read(name, 100).data == b"inside", name
        with pytest.raises(FileNotFoundError):
            files.read("ours", 100)


def test_openat2_and_the_fallback_agree(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").touch()
    (tmp_path / "short").symlink_to("a/b")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "top").symlink_to("/a")
    (tmp_path / "dots").symlink_to("short/../b/./file")
    root = os.open(tmp_path, os.O_PATH)

    def found(follow: Callable[..., int], path: str, links: bool) -> object:
        try:
            fd = follow(root, path, links)
        except OSError as error:
            return error.errno
        try:
            return os.fstat(fd).st_ino
        finally:
            os.close(fd)

    paths = [
        "/a/b/file",
        "short/file",
        "short/../b/file",
        "round",
        "top/b/file",
        "/../a",
        "dots",
        "a/b/file/x",
        "nowhere/x",
        "a//b/",
        "./a/./b",
        "..",
    ]
    try:
        for links in (True, False):
            assert [found(open_place, path, links) for path in paths] == [found(walk, path, links) for path in paths]
    finally:
        os.close(root)


@pytest.mark.usefixtures("resolver")
def test_files_that_the_targets_user_may_not_read_are_refused(open_folder: Path) -> None:
    (open_folder / "private").write_text("secret")
    (open_folder / "private").chmod(0o600)
    (open_folder / "public").write_text("hello")
    (open_folder / "public").chmod(0o644)
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    (closed / "file").write_text("secret")
    with of_user(open_folder, extra_groups=[]) as files:
        assert files.read("public", 100).data == b"hello"
        for ask in (
            lambda: files.read("private", 100),
            lambda: files.read(str(closed / "file"), 100),
            lambda: files.stat(str(closed / "file")),
            lambda: files.names(str(closed), 100),
        ):
            with pytest.raises(PermissionError) as refused:
                ask()
            assert read_failure(refused.value) == "its user may not read it"
        assert files.stat("private").st_size == 6  # its name is no secret
    assert (closed / "file").read_text() == "secret", "our own rights stay"


@pytest.mark.usefixtures("resolver")
def test_supplementary_groups_count(open_folder: Path) -> None:
    shared = open_folder / "shared"
    shared.write_text("of a group")
    need_root()
    os.chown(shared, 0, GROUP)
    shared.chmod(0o640)
    with of_user(open_folder, extra_groups=[GROUP]) as member, of_user(open_folder, extra_groups=[]) as stranger:
        assert member.read("shared", 100).data == b"of a group"
        with pytest.raises(PermissionError):
            stranger.read("shared", 100)


def test_without_root_we_read_with_our_own_rights(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (open_folder / "private").write_text("ours")
    (open_folder / "private").chmod(0o600)
    with of_user(open_folder, extra_groups=[]) as files:
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert files.read("private", 100).data == b"ours"


def test_if_rights_cannot_be_assumed_nothing_is_read(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root in a container without CAP_SETUID."""
    (open_folder / "public").write_text("hello")

    class Refusing:
        def __getattr__(self, name: str) -> Callable[..., int]:
            return lambda *_: -1

    with of_user(open_folder, extra_groups=[]) as files:
        libc = target_files._libc()
        monkeypatch.setattr(target_files, "_libc", Refusing)
        with pytest.raises(PermissionError, match="CAP_SETUID"):
            files.read("public", 100)
        monkeypatch.setattr(target_files, "_libc", lambda: libc)
        assert files.read("public", 100).data == b"hello"


def test_a_setuid_program_counts_as_the_user_that_is_not_root(tmp_path: Path) -> None:
    """A program that is setuid root was started, and is steered, by somebody else."""
    (tmp_path / "status").write_text("Name:\tx\nUid:\t1000\t0\t0\t0\nGid:\t1000\t1000\t1000\t1000\nGroups:\t4 24 \n")
    folder = os.open(tmp_path, os.O_PATH)
    try:
        rights = rights_of(folder)
    finally:
        os.close(folder)
    assert (rights.user, rights.group, rights.groups) == (1000, 1000, (4, 24))


def test_descriptors_of_a_target(tmp_path: Path) -> None:
    (tmp_path / "held").write_text("x")
    with process(sys.executable, "-c", f"held = open('held'); {SLEEP}", cwd=tmp_path) as files:
        fd = next(
            int(n)
            for n in os.listdir(f"/proc/{files.pid}/fd")
            if os.readlink(f"/proc/{files.pid}/fd/{n}").endswith("/held")
        )
        found = files.each([fd, 999], os.fstat)
        status, absent = found[fd], found[999]
        assert isinstance(status, os.stat_result)
        assert status.st_ino == (tmp_path / "held").stat().st_ino
        assert isinstance(absent, FileNotFoundError)


# --- a mount that never answers -------------------------------------------------------------------

# A FUSE filesystem whose server takes no request, as a network mount whose server is gone; in a mount namespace of its
# own.
DEAD = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x00020000) == 0, ctypes.get_errno()
assert libc.mount(b"none", b"/", None, (1 << 14) | (1 << 18), None) == 0
server = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={server},rootmode=40000,user_id=0,group_id=0,allow_other"
assert libc.mount(b"dead", sys.argv[1].encode(), b"fuse", 0, options.encode()) == 0, ctypes.get_errno()
if len(sys.argv) > 2:
    os.setuid(int(sys.argv[2]))
print("ready", flush=True)
time.sleep(600)
"""


@contextmanager
def with_dead_mount(folder: Path, *user: str) -> Iterator[TargetFiles]:
    need_root()
    met(None if os.path.exists("/dev/fuse") else "no /dev/fuse")
    folder.mkdir(exist_ok=True)
    with process(sys.executable, "-c", DEAD, str(folder), *user, cwd="/") as files:
        yield files


def stuck() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("files-of-")]


def test_a_mount_that_never_answers_costs_one_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_files, "DEADLINE_S", 0.3)
    (tmp_path / "alive").write_text("x")
    dead = tmp_path / "dead"
    with with_dead_mount(dead) as files:
        paths = [f"{dead}/a", str(tmp_path / "alive"), f"{dead}/b", f"{dead}/c/d"]
        found = files.each(paths, os.fstat)
        assert [type(one).__name__ for one in found.values()] == ["TimeoutError", "stat_result", *["TimeoutError"] * 2]
        until(stuck, lambda threads: len(threads) == 1)  # the next questions about the mount are refused at once
        with pytest.raises(TimeoutError):
            files.read(f"{dead}/a", 10)
        until(stuck, lambda threads: len(threads) == 1)
        with process() as other:
            assert other.stat(str(tmp_path / "alive")).st_size == 1
    until(lambda: not stuck())  # its server is gone, and what waited for it comes back


def test_dead_mounts_use_up_the_limit_of_one_user_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_files, "DEADLINE_S", 0.1)
    dead = tmp_path / "dead"
    (tmp_path / "alive").write_text("x")
    for number in range(9):
        (tmp_path / f"link{number}").symlink_to(dead / "file")
    for folder in (tmp_path, *list(tmp_path.parents)[:-2]):
        folder.chmod(0o755)
    with with_dead_mount(dead, str(OTHER)) as files, process() as ours:
        found = files.each([str(tmp_path / f"link{number}") for number in range(9)], os.fstat)
        assert all(isinstance(one, TimeoutError) for one in found.values())
        until(stuck, lambda threads: len(threads) == target_files.MAX_STUCK_OF_USER)
        with pytest.raises(TimeoutError, match="too many"):
            files.stat(str(tmp_path / "alive"))
        assert ours.stat(str(tmp_path / "alive")).st_size == 1
    until(lambda: not stuck())


def test_every_failure_is_an_os_error() -> None:
    with process() as files:
        found = files.each(["/", "/etc/hosts"], lambda fd: names(fd, 1))
        assert isinstance(found["/"], list)
        assert isinstance(found["/etc/hosts"], NotADirectoryError)
