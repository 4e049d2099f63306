"""Output of Slurm's commands: `sacct`, `scontrol show job`, `scontrol show node`, `squeue`.

States and reasons: Slurm 20 to 25 (slurm/slurm.h, src/common/slurm_protocol_defs.c, job_state_string,
node_state_string; sacct(1), JOB STATE CODES). A state that Slurm itself set is an outcome from outside and no failure
of a rank. A job that is FAILED says nothing about the cause: its logs do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._pasted_text import text_lines

_SACCT = re.compile(r"\s*\|?\s*JobID(?:Raw)?\b.{0,300}\bState\b.{0,300}")
_SQUEUE = re.compile(r"\s*JOBID\s.{0,200}\b(?:ST|STATE)\b.{0,200}")
_JOB = re.compile(r"\bJobId=(\d{1,12}(?:_\d{1,9})?)\b")
_NODE = re.compile(r"\bNodeName=([\w.\-]{1,200})\b")
_PAIR = re.compile(r"\b(JobState|State|Reason|NodeList|BatchHost)=(\S{1,300})")
_REASON = re.compile(r"\bReason=(.{1,200}?)(?: \[|$)")
OPENING = re.compile(
    r"^[ \t|]*JobID(?:Raw)?\b.*\bState\b|^[ \t]*JOBID\s.*\b(?:ST|STATE)\b"
    r"|\bJobId=\d{1,12}.*\bJobName=|\bNodeName=[\w.\-]+\s+Arch=|^[ \t]*JobState=[A-Z_]+ Reason=",
    re.MULTILINE,
)
# State -> kind of event, and what it means.
OUTCOMES = {
    "TIMEOUT": ("ended_by_scheduler", "reached its time limit"),
    "DEADLINE": ("ended_by_scheduler", "reached its deadline"),
    "PREEMPTED": ("ended_by_scheduler", "was preempted"),
    "REVOKED": ("ended_by_scheduler", "was revoked"),
    "CANCELLED": ("ended_from_outside", "was cancelled"),
    "NODE_FAIL": ("node_failed", "ended because a node failed"),
    "BOOT_FAIL": ("node_failed", "ended because a node did not boot"),
    "OUT_OF_MEMORY": ("process_killed", "exceeded its memory limit"),
}
SHORT = {"TO": "TIMEOUT", "PR": "PREEMPTED", "CA": "CANCELLED", "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY",
         "BF": "BOOT_FAIL", "DL": "DEADLINE", "RV": "REVOKED", "PD": "PENDING", "R": "RUNNING"}  # fmt: skip
LOST = re.compile(r"(?:DOWN|FAIL|FAILING|NO_RESPOND|NOT_RESPONDING|UNKNOWN)\b|\S*\*$", re.IGNORECASE)
MAX_SUBJECTS = 4096  # jobs, and nodes, that are counted
MAX_NODES = 8  # `scontrol show node` without a name prints all nodes of the cluster


class SlurmReader:
    name = "Slurm's sacct, scontrol or squeue"
    order = 38
    marks = ("JobID", "JobId=", "JOBID", "NodeName=", "JobState=")
    help = (
        "`sacct -j JOB --format=JobID,State,ExitCode,NodeList,End`, `scontrol show job JOB`, `scontrol show node NODE`"
    )

    def recognises(self, source: Source) -> bool:
        return bool(OPENING.search(source.head_text))

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        found = _Found()
        for number, text in enumerate(text_lines(source, context), 1):
            found.feed(text, source.name, number)
        # A list of many jobs or nodes does not show which of them is meant.
        if len(found.jobs) == 1:
            yield from found.jobs.popitem()[1].values()
        if len(found.nodes) <= MAX_NODES:
            for node in found.nodes.values():
                yield from node.values()


@dataclass(slots=True)
class _Found:
    """Outcomes by subject and kind. The steps of a job, and healthy subjects, have no outcome of their own."""

    jobs: dict[str, dict[str, Piece]] = field(default_factory=dict)
    nodes: dict[str, dict[str, Piece]] = field(default_factory=dict)
    _columns: list[str] = field(default_factory=list)
    _open: dict[str, str] = field(default_factory=dict)  # fields of the current record of scontrol

    def feed(self, text: str, source: str, number: int) -> None:
        if _SACCT.fullmatch(text) or _SQUEUE.fullmatch(text):
            self._columns = [one.strip() for one in (text.split("|") if "|" in text else text.split()) if one.strip()]
        elif _NODE.search(text) or _JOB.search(text):
            self._columns = []
            self._open = {"job": job[1]} if (job := _JOB.search(text)) else {"node": _NODE.findall(text)[0]}
            self._pairs(text, source, number)
        elif self._open:
            self._pairs(text, source, number)
        elif not text.strip():
            self._columns = []
        elif self._columns:
            row = dict(_cells(self._columns, text))
            state = row.get("State") or row.get("ST") or row.get("STATE")
            name = (row.get("JobID") or row.get("JobIDRaw") or row.get("JOBID") or "").split(".")[0]
            if state and re.match(r"\d{1,12}", name):
                self._add(self.jobs, name, _job(name, state, row, source, number))

    def _pairs(self, text: str, source: str, number: int) -> None:
        """A line of scontrol: NAME=VALUE NAME=VALUE ..."""
        self._open |= {pair[1]: pair[2] for pair in _PAIR.finditer(text)}
        if reason := _REASON.search(text):
            self._open["Reason"] = reason[1].split(" Dependency=")[0].strip()
        if "job" in self._open:
            job = self._open["job"]
            if "JobState" in self._open:
                self._add(self.jobs, job, _job(job, self._open["JobState"], self._open, source, number))
        elif "State" in self._open:
            node = self._open["node"]
            self._add(self.nodes, node, _node(node, self._open["State"], self._open.get("Reason"), source, number))

    @staticmethod
    def _add(known: dict[str, dict[str, Piece]], subject: str, found: tuple[str | None, LogEvent] | None) -> None:
        if subject not in known and len(known) >= MAX_SUBJECTS:
            return
        kinds = known.setdefault(subject, {})
        if found is not None:
            host, event = found
            if event.kind not in kinds or len(event.text) > len(kinds[event.kind].record.said[0].text):
                kinds[event.kind] = Piece(ProcessRef(host=host), "logs", Logs((event,)), launcher="slurm")


def _cells(columns: list[str], text: str) -> Iterator[tuple[str, str]]:
    """Columns and cells of a row; of a row with empty cells, none but the state."""
    cells = [one.strip() for one in text.split("|")] if "|" in text else text.replace(" by ", "_by_").split()
    if len(cells) >= len(columns):
        yield from zip(columns, cells, strict=False)
        return
    state = next((name for name in columns if name.upper() in ("STATE", "ST")), None)
    word = next((cell for cell in cells[1:] if cell.rstrip("+").split("_by_")[0] in OUTCOMES), None)
    if cells and state is not None and word is not None:
        yield columns[0], cells[0]
        yield state, word


def _job(job: str, state: str, row: Mapping[str, str], source: str, line: int) -> tuple[str | None, LogEvent] | None:
    """The outcome of a job, if something outside of it decided that."""
    reason, nodes = row.get("Reason"), row.get("NodeList")
    word = state.replace("_by_", " ").split()[0].rstrip("+") if state.split() else ""
    word = SHORT.get(word, word)
    full = word if word in OUTCOMES else next((one for one in OUTCOMES if len(word) >= 6 and one.startswith(word)), "")
    if not full:
        return None
    kind, meaning = OUTCOMES[full]
    by = re.search(r"by[_ ](\d{1,10})", state)
    who = f" by user {by[1]}" if by else ""
    why = f" ({reason[:100]})" if reason and reason not in ("None", full, "(null)") else ""
    fields = {"job": job, "why": full.replace("_", " ")}
    single = nodes if nodes and re.fullmatch(r"[A-Za-z][\w.\-]{0,200}", nodes) and nodes != "None" else None
    host = single if kind == "node_failed" else None
    if host:
        fields["host"] = host
    return host, LogEvent(kind, f"Slurm job {job} {meaning}{who}{why}", source, line, None, fields)


def _node(node: str, state: str, reason: str | None, source: str, line: int) -> tuple[str | None, LogEvent] | None:
    """A node that does not answer. A drained node still runs what it runs."""
    if not any(LOST.match(part) for part in state.split("+")):
        return None
    why = f": {reason[:120]}" if reason and reason.lower() not in ("none", "(null)") else ""
    text = f"Slurm node {node} is {state.lower()}{why}"
    return node, LogEvent("node_failed", text, source, line, None, {"host": node, "why": (reason or state)[:200]})


READER = SlurmReader()
