"""The record of an incident, `incident.json` beside its recording: what hangdoc concluded, which is no evidence."""

from __future__ import annotations

from collections.abc import Iterable

from hangdoc.postmortem.readers import EvidenceItem, ReadContext, Source


class IncidentReader:
    name = "incident record"
    order = 0
    exclusive = True
    help = "`hangdoc incidents` lists what `hangdoc watch` kept; `hangdoc report latest` judges the newest again"

    def recognises(self, source: Source) -> bool:
        return source.head.startswith(b'{"schema":"hangdoc.incident/')

    def read(self, source: Source, context: ReadContext) -> Iterable[EvidenceItem]:
        context.progress(source.size)
        return ()


READER = IncidentReader()
