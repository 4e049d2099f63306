"""What /proc says of a process."""

from __future__ import annotations

import os

from hangdoc.system import procfs


def test_what_is_mapped() -> None:
    assert procfs.maps_any(os.getpid(), (b"/no-such-library", b"/libc.so")) is True
    assert procfs.maps_any(os.getpid(), (b"/no-such-library",)) is False
    assert procfs.maps_any(2**30, (b"/libc.so",)) is None, "no such process"
