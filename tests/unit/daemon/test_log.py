"""Lines of the daemon's log."""

from __future__ import annotations

import io
import os

from hangdoc.daemon.log import Log, is_journal


def test_a_line_is_one_line_masked_and_has_its_priority() -> None:
    stream = io.StringIO()
    Log(stream, journal=True).error("job\nfailed\x1b[31m: password=hunter2hunter2")
    assert stream.getvalue().startswith("<3>job failed")
    assert stream.getvalue().count("\n") == 1
    assert "hunter2" not in stream.getvalue()
    Log(stream, journal=False).notice("plain")
    assert stream.getvalue().splitlines()[1].endswith("Z notice: plain")


def test_the_same_warning_is_written_once() -> None:
    stream = io.StringIO()
    log = Log(stream, journal=True)
    for _ in range(3):
        log.once("disk full")
    log.once("another")
    assert stream.getvalue() == "<4>disk full\n<4>another\n"


def test_only_the_stream_that_the_journal_reads_gets_priorities() -> None:
    reading, writing = os.pipe()
    try:
        status = os.fstat(writing)
        assert is_journal({"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}, writing)
        assert not is_journal({"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino + 1}"}, writing)
        assert not is_journal({}, writing)
    finally:
        os.close(reading)
        os.close(writing)
