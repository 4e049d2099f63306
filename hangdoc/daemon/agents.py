"""Answers agents on the daemon's Unix socket: each user gets the ranks of their own jobs, root gets all.

The protocol is that of `hangdoc.fleet.protocol`. Each connection has a thread, which only reads what the rounds have
left on the board: a slow or hostile peer holds up no round. Everything that a peer sends or leaves unread is bounded.
"""

from __future__ import annotations

import os
import platform
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from hangdoc.daemon.board import Board, visible
from hangdoc.evidence import Snapshot
from hangdoc.fleet import protocol
from hangdoc.fleet.encoder import Encoder
from hangdoc.system import node_socket
from hangdoc.system.account import account
from hangdoc.watch.agent import TIERS, ProcessIds, boot_id

MAX_PEERS, MAX_OF_USER = 64, 4  # connections; root and our own user may have all of them
MAX_LINE_BYTES = 64 << 10  # of a question: the PIDs of a thousand ranks take 10 KB
IDLE_S = 120.0  # without a question, a connection is closed
SEND_S = 10.0  # for an answer to be read
ANSWER_S = 9.0  # until an answer is the newest round there is; the collector waits 12 s
PAUSE_S = 0.02  # after each piece that a peer sends, and each connection: more often costs CPU time


class AgentServer:
    """Listens on the socket until it is closed."""

    def __init__(self, path: str, board: Board, hosts: frozenset[str], say: Callable[[str], None]) -> None:
        """`hosts`: names of probes of the whole host. Raises OSError if nobody could listen at `path`."""
        self.path, self._board, self._hosts, self._say = path, board, hosts, say
        self._listener = node_socket.listen(path)
        self._inode = os.stat(path).st_ino
        self._lock = threading.Lock()
        self._peers: dict[socket.socket, int] = {}
        self._closed = False
        threading.Thread(target=self._accept, name="agents", daemon=True).start()

    def close(self) -> None:
        """Close the socket and every connection."""
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with suppress(OSError):
            if os.stat(self.path).st_ino == self._inode:  # else a later daemon listens there
                os.unlink(self.path)
        with self._lock:
            for peer in self._peers:
                with suppress(OSError):
                    peer.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed:
            try:
                peer, _ = self._listener.accept()
            except OSError as error:
                if self._closed:
                    return
                self._say(f"no agent can connect to {self.path}: {error.strerror or error}")
                time.sleep(1.0)  # too many descriptors are open
                continue
            try:
                user = node_socket.peer_user(peer)
                admitted = user is not None and self._admit(peer, user)
                if admitted:
                    threading.Thread(target=self._serve, args=(peer, user), name="agent", daemon=True).start()
                else:
                    peer.close()
            except (OSError, RuntimeError):  # RuntimeError: no thread can be started
                self._release(peer)
            time.sleep(PAUSE_S)

    def _admit(self, peer: socket.socket, user: int) -> bool:
        with self._lock:
            most = MAX_PEERS if _sees_all(user) else MAX_OF_USER
            if len(self._peers) >= MAX_PEERS or Counter(self._peers.values())[user] >= most:
                return False
            self._peers[peer] = user
            return True

    def _release(self, peer: socket.socket) -> None:
        with self._lock:
            self._peers.pop(peer, None)
        peer.close()

    def _serve(self, peer: socket.socket, user: int) -> None:
        try:
            _Connection(peer, user, self._board, self._hosts).serve()
        except (OSError, ValueError):
            pass  # it has left, is too slow, or does not speak the protocol
        except Exception as error:
            self._say(f"an answer to an agent failed: {type(error).__name__}: {error}")
        finally:
            self._release(peer)


def _sees_all(user: int) -> bool:
    return user in (0, os.geteuid())


@dataclass(slots=True)
class _Connection:
    """One peer."""

    peer: socket.socket
    user: int
    board: Board
    hosts: frozenset[str]
    _encoder: Encoder = field(default_factory=Encoder)
    _ids: ProcessIds = field(default_factory=ProcessIds)
    _seen: int = 0  # number of the last round that was sent

    def serve(self) -> None:
        """Answer until the peer leaves. Raises OSError if it is too slow, ValueError for what is no command."""
        self._send(protocol.Hello(host=platform.node(), boot=boot_id()))
        for line in self._lines():
            command = protocol.parse(line, protocol.Command)
            if command.do == "ping":
                self._send(protocol.Pong())
            elif command.do in TIERS:
                self._send(self._answer(command))
            else:
                return

    def _answer(self, command: protocol.Command) -> protocol.Answer:
        newest = self.board.newest()
        mine = self._part(newest) if newest else None
        if mine is not None and not mine.ranks:
            shot = mine  # nobody causes a round who has no rank here
        else:
            pids = {rank.target.pid for rank in mine.ranks} if mine else set()
            still = pids.intersection(command.of("").still)
            self._seen, newest = self.board.ask(self.user, TIERS[command.do], still, self._seen, ANSWER_S)
            shot = self._part(newest)
        return self._encoder.answer(command.id, shot, self._ids.processes([rank.target for rank in shot.ranks]))

    def _part(self, shot: Snapshot) -> Snapshot:
        return shot if _sees_all(self.user) else visible(shot, self.user, account, self.hosts)

    def _send(self, message: object) -> None:
        self.peer.settimeout(SEND_S)
        self.peer.sendall(protocol.line(message))

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        self.peer.settimeout(IDLE_S)
        while (piece := self.peer.recv(1 << 16)) and len(rest) + len(piece) <= MAX_LINE_BYTES:
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line
                time.sleep(PAUSE_S)
            time.sleep(PAUSE_S)
            self.peer.settimeout(IDLE_S)
