"""Recordings of `hangdoc watch --record`: whole snapshots, as they were taken."""

from __future__ import annotations

from collections.abc import Iterable

from hangdoc.readers import Found, Notes, Source
from hangdoc.recording import NotARecording, read


class RecordingReader:
    name = "recording"
    order = 0
    help = "`hangdoc watch --record DIR` beside the job keeps what it sees of an incident"

    def knows(self, source: Source) -> bool:
        return b'"hangdoc.recording/' in source.head[:4096]

    def read(self, source: Source, notes: Notes) -> Iterable[Found]:
        try:
            (recording,) = read(source.path)
        except NotARecording as error:
            notes.problem(str(error))
            return
        for problem in recording.problems:
            notes.problem(problem)
        notes.progress(source.size)
        yield from recording.snapshots


READER = RecordingReader()
