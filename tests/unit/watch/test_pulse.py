"""The pulse of a job with real sockets: what moves as before, and what does not."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from hangdoc.evidence import RankEvidence, Snapshot, Target
from hangdoc.system import procfs
from hangdoc.watch.pulse import LEARNED_BEATS, Pulse
from probes import Request, Tier
from probes.sockets import PROBE

CHUNK = 1 << 16  # bytes of a beat: 32 KiB/s


class Job:
    """A rank, this process, with two ends of a connection; each beat is two seconds after the last."""

    def __init__(self, ends: tuple[socket.socket, socket.socket], port: int) -> None:
        stat = procfs.stat(os.getpid())
        assert stat is not None
        self.target = Target(os.getpid(), stat.start_ticks, "here", 0, job="job", master=f"127.0.0.1:{port}")
        self.ends, self.now_s, self.stalled = ends, 0.0, False
        self.pulse = Pulse(lambda: self.now_s)
        seen = PROBE.observe(Request((self.target,), Tier.PULSE)).by_pid
        rank = RankEvidence(self.target, True, {"sockets": seen[self.target.pid]})
        self.pulse.learn("job", (Snapshot("here", 0.0, "", (rank,)),))

    def beat(self, size: int) -> bool:
        sender, receiver = self.ends
        left = size
        while left:
            sender.sendall(bytes(min(left, 1 << 14)))
            left -= len(receiver.recv(1 << 14, socket.MSG_WAITALL) if left >= 1 << 14 else receiver.recv(left))
        self.now_s += 2.0
        return bool(self.pulse.beat({"job": [self.target]}, {"job"} if self.stalled else ()))


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        sender = stack.enter_context(socket.create_connection(server.getsockname()))
        receiver = stack.enter_context(server.accept()[0])
        yield sender, receiver


def test_a_standstill_shows_and_so_does_its_end(ends: tuple[socket.socket, socket.socket]) -> None:
    job = Job(ends, 1)
    assert not any(job.beat(CHUNK) for _ in range(LEARNED_BEATS + 3))
    assert job.pulse.knows("job", stalled=False)
    assert job.beat(0)
    job.pulse.restart("job")
    assert not job.pulse.knows("job", stalled=True)
    assert not any(job.beat(0) for _ in range(LEARNED_BEATS + 2))
    assert not job.pulse.knows("job", stalled=False), "with no bytes a standstill would not show"
    assert job.pulse.knows("job", stalled=True)
    assert job.beat(CHUNK)


def test_the_first_bytes_of_a_stalled_job_are_odd_before_its_rhythm_is_learned(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    job = Job(ends, 1)
    job.stalled = True
    assert not job.beat(0)
    assert not job.beat(0)
    assert job.beat(2048), "the smallest step"


def test_pauses_that_belong_to_the_job_are_learned(ends: tuple[socket.socket, socket.socket]) -> None:
    job = Job(ends, 1)
    for _ in range(LEARNED_BEATS):
        job.beat(CHUNK)
        job.beat(0)
    assert not any(job.beat(CHUNK) or job.beat(0) for _ in range(3))
    assert not job.pulse.knows("job", stalled=False)


def test_traffic_with_the_store_is_no_step(ends: tuple[socket.socket, socket.socket]) -> None:
    sender, _ = ends
    job = Job(ends, sender.getpeername()[1])
    assert not any(job.beat(CHUNK) for _ in range(LEARNED_BEATS + 3))
    assert not job.pulse.knows("job", stalled=False)


def test_nothing_of_a_job_that_has_ended_stays(ends: tuple[socket.socket, socket.socket]) -> None:
    job = Job(ends, 1)
    job.beat(CHUNK)
    assert job.pulse._tables
    job.pulse.beat({})
    assert not job.pulse._jobs
    assert not job.pulse._inodes
    job.pulse.beat({})
    assert not job.pulse._tables
    job.pulse.close()
