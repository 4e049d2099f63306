from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from hangdoc.system.private_files import open_folder, read_file, replace_file

STRANGER = 65534


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def as_root() -> None:
    if os.geteuid():
        pytest.skip("only root can make files of another user")


def test_a_new_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        replace_file(tmp_path / "page.html", b"new")
    finally:
        os.umask(before)
    assert (tmp_path / "page.html").read_bytes() == b"new"
    assert mode(tmp_path / "page.html") == 0o600
    assert list(tmp_path.iterdir()) == [tmp_path / "page.html"]


def test_an_old_file_is_replaced_atomically(tmp_path: Path) -> None:
    page, other = tmp_path / "page.html", tmp_path / "other.html"
    page.write_bytes(b"old")
    page.chmod(0o666)
    other.hardlink_to(page)
    replace_file(page, b"new")
    assert (page.read_bytes(), mode(page)) == (b"new", 0o600)
    assert other.read_bytes() == b"old"


def test_a_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.html"
    page.write_bytes(b"old")
    write = os.write

    def some(descriptor: int, content: bytes) -> int:
        """As a disk with room for four bytes does it: some are taken, the rest is refused."""
        if len(content) < 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content[:4])

    monkeypatch.setattr(os, "write", some)
    with pytest.raises(OSError, match="No space left"):
        replace_file(page, b"12345678")
    assert page.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [page]


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:3]))
    replace_file(tmp_path / "page.html", b"0123456789")
    assert (tmp_path / "page.html").read_bytes() == b"0123456789"


def test_a_path_that_is_a_link_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"old")
    (tmp_path / "page.html").symlink_to(target)
    with pytest.raises(OSError, match="is a symbolic link: name the file that it leads to"):
        replace_file(tmp_path / "page.html", b"new")
    assert target.read_bytes() == b"old"


def test_a_folder_or_a_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "folder", b"new")
    for path in (tmp_path / "fifo", Path("/dev/null")):
        with pytest.raises(OSError, match="is not a regular file"):
            replace_file(path, b"new")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_our_own_links_to_folders_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/../real")
    replace_file(tmp_path / "link" / "inner" / ".." / "page.html", b"new")
    assert (tmp_path / "real" / "page.html").read_bytes() == b"new"


@pytest.mark.parametrize("name", ["link/page.html", "link/inner/page.html"])
def test_links_of_other_users_are_not_followed(tmp_path: Path, name: str) -> None:
    as_root()
    (tmp_path / "ours" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "ours")
    os.lchown(tmp_path / "link", STRANGER, STRANGER)
    with pytest.raises(OSError, match="symbolic link of another user"):
        replace_file(tmp_path / name, b"new")
    with pytest.raises(OSError, match="symbolic link of another user"), open_folder(tmp_path / name, make=True):
        pass
    assert [path.name for path in (tmp_path / "ours").rglob("*")] == ["inner"]


def test_circular_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        replace_file(tmp_path / "a" / "page.html", b"new")


def test_new_folders_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    with open_folder(tmp_path / "a" / "b", make=True) as folder:
        assert os.readlink(f"/proc/self/fd/{folder}") == str(tmp_path / "a" / "b")
    assert mode(tmp_path / "a") == mode(tmp_path / "a" / "b") == 0o700
    with pytest.raises(FileNotFoundError), open_folder(tmp_path / "c"):
        pass


def test_our_own_descriptors_are_written_to() -> None:
    reader, writer = os.pipe()
    try:
        replace_file(Path(f"/dev/fd/{writer}"), b"new")
        assert os.read(reader, 10) == b"new"
    finally:
        os.close(reader)
        os.close(writer)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for path in (tmp_path / "page.html", tmp_path / "none" / "page.html", tmp_path, Path("/dev/null")):
        try:
            replace_file(path, b"new")
        except OSError:
            continue
    assert os.listdir("/proc/self/fd") == before


def test_a_file_for_others_gets_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        replace_file(tmp_path / "a.prom", b"x", 0o644)
    finally:
        os.umask(before)
    assert mode(tmp_path / "a.prom") == 0o644


def test_a_file_is_read_through_our_own_links_only(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "token").write_bytes(b"secret")
    (tmp_path / "token").symlink_to("..data/token")  # as Kubernetes mounts a secret
    assert read_file(tmp_path / "token", 6) == b"secret"
    as_root()
    os.chown(tmp_path / "token", STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(OSError, match="symbolic link of another user"):
        read_file(tmp_path / "token", 6)


@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path)], ids=["fifo", "dir", "loop"]
)
def test_only_a_regular_file_is_read(make: Callable[[Path], object], tmp_path: Path) -> None:
    make(tmp_path / "it")
    with pytest.raises(OSError, match=r"regular|levels"):
        read_file(tmp_path / "it", 10)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "it").write_bytes(b"1234567")
    with pytest.raises(OSError, match="is larger than 6 bytes"):
        read_file(tmp_path / "it", 6)
