"""The Unix socket of a node daemon: its place, who is at the other end (unix(7), SO_PEERCRED), and whom to trust."""

from __future__ import annotations

import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path

from hangdoc.system import procfs
from hangdoc.system.programs import path_owners

VARIABLE = "HANGDOC_SOCKET"  # another place for those who ask; `off`: nobody asks
SERVED = "/run/hangdoc/hangdoc.sock"
LONGEST_PATH = 107  # bytes; sun_path of unix(7)
FOLDER_MODE, SOCKET_MODE = 0o755, 0o666  # who may see what is decided by the user ID of the peer
BACKLOG = 16
_PEER = struct.Struct("3i")  # PID, UID and GID of the peer: unix(7)
_WHOLE_MAP = "0 0 4294967295"  # of the first user namespace


def served_path() -> str:
    """Where a daemon listens by default: in the folder that systemd made for it, else in that of root; "": nowhere."""
    if folder := os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]:
        return f"{folder}/hangdoc.sock"
    return SERVED if os.geteuid() == 0 else ""


def asked_path() -> str:
    """Where those who ask look for a daemon; "": nowhere."""
    path = os.environ.get(VARIABLE, SERVED)
    return path if path.startswith("/") else ""


def listen(path: str) -> socket.socket:
    """A listening socket at `path`, for every user of this host. Raises OSError with the reason.

    The folder must belong to us or to root, and nobody else may write to it or to a folder above it: else another user
    could put a socket of their own in its place.
    """
    if not os.path.isabs(path) or len(os.fsencode(path)) > LONGEST_PATH:
        raise OSError(f"a path of a socket is absolute and has at most {LONGEST_PATH} bytes")
    folder = os.path.dirname(path)
    with suppress(FileExistsError):
        os.mkdir(folder)
        os.chmod(folder, FOLDER_MODE)
    if not _is_safe(folder, {0, os.geteuid()}):
        raise PermissionError(f"other users can write to {folder} or to a folder above it")
    _remove_left(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(path)
        os.chmod(path, SOCKET_MODE)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def connect(path: str, timeout_s: float) -> socket.socket:
    """A connection to the daemon at `path`. Raises OSError, also if it is not a daemon of root's choice.

    The folders above that of the socket belong to root, so root has chosen who owns it: root, or the user of the
    service. The process that listens must be of one of them, or of our own user.
    """
    folder = Path(path).parent
    owner = os.stat(folder).st_uid
    if not _is_safe(str(folder.parent), {0, os.geteuid()}) or not _is_safe(str(folder), {0, os.geteuid(), owner}):
        raise PermissionError(f"other users can write to {folder} or to a folder above it")
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        peer.settimeout(timeout_s)
        peer.connect(path)
        if peer_user(peer) not in (0, os.geteuid(), owner):
            raise PermissionError(f"a process of another user listens at {path}")
    except OSError:
        peer.close()
        raise
    return peer


def peer_user(peer: socket.socket) -> int | None:
    """The user ID of the process at the other end; None: a user that our user namespace does not know."""
    user: int = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1]
    if " ".join((procfs.text("/proc/self/uid_map") or "").split()) != _WHOLE_MAP and user == _overflow_user():
        return None  # every unknown user has this ID (user_namespaces(7))
    return user


def _overflow_user() -> int:
    text = (procfs.text("/proc/sys/kernel/overflowuid") or "").strip()
    return int(text) if text.isdecimal() else 65534


def _is_safe(folder: str, owners: set[int]) -> bool:
    """True if only these users, and root, may change the folder or a folder above it."""
    return all(owner in {0, *owners} and not to_others for owner, to_others in path_owners(folder))


def _remove_left(path: str) -> None:
    """Remove the socket of a daemon that has ended. Raises OSError if one still listens, or it is something else."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(f"{path} is there and is no socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(path)
            except (ConnectionRefusedError, FileNotFoundError):
                os.unlink(path)
                return
        raise OSError(f"another daemon listens at {path}")
