"""Output of `kubectl get pods`, `kubectl describe pod` and `kubectl get events`.

Columns and states: Kubernetes 1.20 to 1.34 (pkg/printers/internalversion/printers.go, printPod;
staging/src/k8s.io/kubectl/pkg/describe/describe.go). The main process of a container has PID 1 in it. Only what the
text says of a pod is taken: a pod's number is no rank (the master of a PyTorchJob has none, its workers begin at 0),
unless the text says so, or that it is a PyTorchJob and how many ranks a pod has (`_placement.pod_order`), or the logs
of two pods confirm the order of a PyTorchJob (rank 0 is the master, worker N has rank N+1); RANK in the environment of
its container is, and the rank that its log names.
"""

from __future__ import annotations

import re
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from hangdoc.evidence import End
from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import CONTAINER_PID, Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._host_names import prompt_of
from hangdoc.postmortem.readers._pasted_text import text_lines, without_time
from hangdoc.postmortem.readers._placement.pod_order import node_of
from hangdoc.postmortem.readers._text_source import placement_in

_POD = r"[a-z0-9][a-z0-9.\-]{0,252}"
_PODS = re.compile(r"\s*(?:NAMESPACE\s+)?NAME\s+READY\s+STATUS\s+RESTARTS\s.{0,200}")
_ROW = re.compile(
    rf"\s*(?:{_POD}\s+)?(?P<pod>{_POD})\s+\d{{1,4}}/\d{{1,4}}\s+(?P<status>[\w:/]{{1,60}})\s+\d{{1,9}}(?:\s.{{0,300}})?"
)
# A command that prints the table; a filter behind it takes the header away.
_LISTED = re.compile(
    r"(?:^|[$#%>\s])(?:kubectl|k|oc) (?:-n \S{1,80} )?get (?:po|pod|pods)\b[^|]{0,120}"
    r"\| ?(?:e?grep|awk|tail|sort|head)\b"
)
_NAME = re.compile(rf"\s*Name:\s+(?P<pod>{_POD})\s*")
_ASKED = re.compile(rf"\bkubectl\s.{{0,120}}?\b(?:describe|get)\s+po(?:ds?)?[ /](?P<pod>{_POD})")
_COLUMNS = re.compile(r"\s{2,}")
_NODE = re.compile(r"\s*Node:\s+(?P<node>[\w.\-]{1,253})/.{0,60}")
# In the environment of a container; two variables may be in one line.
_RANK = re.compile(r"\s*(?:[A-Z_]{1,40}:\s+\S{1,60}\s{2,20})?RANK:\s+(?P<rank>\d{1,6})\s*")
_STATE = re.compile(r"\s*(?P<what>State|Last State):\s+(?P<state>Running|Waiting|Terminated)\s*")
_FIELD = re.compile(r"\s*(?P<name>Status|Reason|Exit Code|Signal|Message):\s+(?P<value>\S.{0,300}?)\s*")
_NODES = re.compile(r"\s*NAME\s+STATUS\s+ROLES\s+AGE\s+VERSION\b.{0,200}")
_NODE_ROW = re.compile(rf"\s*(?P<node>{_POD})\s+NotReady(?:,\w{{1,40}})*\s+\S{{1,80}}\s+\d\w{{0,12}}\s+v\d.{{0,200}}")
_EXIT_CODE = re.compile(r"\"?exitCode\"?: ?(?P<code>\d{1,3})\b")
_EVENT = re.compile(
    r"(?:^|\s)(?P<reason>FailedScheduling|Evicted|Preempted|Preempting|NodeNotReady|TaintManagerEviction|FailedMount"
    r"|FailedAttachVolume|ErrImagePull|OOMKilling|SystemOOM|FailedCreatePodSandBox|Failed to pull image"
    r"|Back-off pulling image)\s+(?P<rest>\S.{0,500})"
)
_OBJECT = re.compile(rf"\bpod/(?P<pod>{_POD})\b")
# A controller could not make a pod: its quota is used up, or an admission webhook refused it.
_REFUSED = re.compile(
    rf"\bFailedCreate(?:Pod)?\s.{{0,200}}?\bpods? \"?(?P<pod>{_POD})\"? is (?P<why>forbidden: .{{1,300}})"
)
# The init container of a PyTorchJob's worker only waits until the name of the master resolves (training-operator,
# pkg/controller.v1/pytorch/initcontainer.go).
_NO_MASTER = re.compile(
    rf"Back-off restarting failed container(?: init-pytorch in pod |=init-pytorch pod=)(?P<job>{_POD})-worker-\d"
)
# The log of a pod: a command, or a heading with its name; and how its lines name their own rank.
_LOGS = re.compile(
    rf"\b(?:kubectl|k|oc)\s(?:\S{{1,80}}\s){{0,4}}?logs?\s(?:-\S{{1,80}}\s){{0,6}}(?:pods?/)?(?P<pod>{_POD})(?!\S)"
)
_HEADING = re.compile(
    rf"(?:[=#*>~\[-]{{1,8}}\s?){{1,2}}(?:pod[/: ]\s?)?(?P<pod>{_POD})\s?[\]=#*<:~-]{{0,8}}\s*|(?P<label>{_POD}):\s*"
)
_OWN_RANK = re.compile(
    r"\[(?:global )?rank[ :=]?(\d{1,6})\]|(?<![\w.-])(?:global[_ ])?rank ?= ?(\d{1,6})(?!\w|\.\d)", re.IGNORECASE
)
LEAST_CONFIRMED = 2  # pods whose logs show the order of a job
_MEMBER = re.compile(r"(?:-(?:master|worker|launcher|node|head|replica|ps))?(?:-\d{1,6})?(?:-[a-z0-9]{5})?$")
OPENING = re.compile(
    r"^[ \t]*(?:\d\w{0,12}[ \t]+)?(?:Warning|Normal)[ \t]+(?:FailedScheduling|Evicted|Preempted|NodeNotReady"
    r"|FailedCreate(?:Pod)?|FailedMount|TaintManagerEviction|FailedAttachVolume|FailedCreatePodSandBox)[ \t]|"
    r"get (?:po|pod|pods|ev|event|events)\b[^|\n]{0,120}\| ?(?:e?grep|awk|tail|sort|head)\b|"
    r"^[ \t]*NAME\s+STATUS\s+ROLES\s+AGE\s+VERSION|"
    r"^[ \t]*(?:NAMESPACE\s+)?NAME\s+READY\s+STATUS\s+RESTARTS|^[ \t]*Last State:|^[ \t]*LAST SEEN\s+TYPE\s+REASON"
    r"|failed container(?: init-pytorch in pod |=init-pytorch pod=)"
    r"|^[ \t]*State:[ \t]+(?:Running|Waiting|Terminated)[ \t]*$"
    r"|^[ \t]*(?:NAME|POD)[ \t]+(?:[A-Z_]{1,30}[ \t]+){0,10}(?:REASON|LAST_?REASON|STATE|TERMINATED)[ \tA-Z_]*$",
    re.MULTILINE,
)
# Reason of an event -> kind of log event. A mount that fails is tried again; the pod has not started.
KINDS = {
    "Evicted": "ended_by_scheduler", "Preempted": "ended_by_scheduler", "TaintManagerEviction": "ended_by_scheduler",
    "NodeNotReady": "node_failed",
    "FailedScheduling": "pod_waits", "FailedMount": "pod_waits", "FailedAttachVolume": "pod_waits",
    "ErrImagePull": "pod_waits", "FailedCreatePodSandBox": "pod_waits",
    "Failed to pull image": "pod_waits", "Back-off pulling image": "pod_waits",
}  # fmt: skip
WAITS = {
    "Pending", "ImagePullBackOff", "ErrImagePull", "ContainerCreating", "CreateContainerConfigError", "Unschedulable",
    "InvalidImageName", "CreateContainerError", "SchedulingGated", "PodInitializing",
}  # fmt: skip
ENDED = {"Evicted": "ended_by_scheduler", "Preempting": "ended_by_scheduler", "NodeLost": "node_failed",
         "NodeShutdown": "ended_by_scheduler", "Terminated": "ended_by_scheduler"}  # fmt: skip
# The head of `-o custom-columns`, as people name the columns, and the columns that matter.
_CUSTOM = re.compile(
    r"\s*(?:NAME|POD)\s+(?=(?:.{0,200}\s)?(?:REASON|LAST_?REASON|STATE|TERMINATED)(?:\s|$))[A-Z_ ]{1,200}"
)
_OF_RANK, _OF_NUMBER = frozenset({"RANK", "GLOBAL_RANK"}), frozenset({"IDX", "INDEX", "ORDINAL", "NR"})
# `sft-7b-3-t9dnp`, `trainer-3`; a master has no number among its workers.
_ORDINAL = re.compile(r"(?!.*-(?:master|launcher|ps|head)-).*-(\d{1,6})(?:-[a-z0-9]{5})?")
MAX_PODS = 4096
MAX_LOG_LINE = 600  # characters
MAX_RANKS_OF_POD = 64


class KubernetesReader:
    name = "kubectl output"
    order = 39
    marks = ("READY", "REASON", "Last State:", "LAST SEEN", "State:  ", " get po", "FailedCreate", "init-pytorch")
    help = "`kubectl get pods -o wide`, `kubectl describe pod POD`, `kubectl get events --sort-by=.lastTimestamp`"

    def recognises(self, source: Source) -> bool:
        texts = source.head_text.splitlines()
        return bool(OPENING.search("\n".join(map(without_time, texts))))

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        placement = placement_in(source)
        found = _Pods(source.name, placement.ordinal_is_rank, placement.ranks_of)
        for number, text in enumerate(text_lines(source, context), 1):
            found.feed(text, number)
        yield from found.pieces()


@dataclass(slots=True)
class _Pods:
    source: str
    _ordinal_is_rank: bool = False  # the text says that the number of a pod is its rank
    _stated: Callable[[str], Sequence[int]] = lambda pod: ()  # the ranks of a pod, if the text says all of them
    _columns: tuple[str, ...] = ()  # of a table that the user chose
    _table: bool = False
    _heads: list[str] = field(default_factory=list)  # of the columns of that table
    _hosts: dict[str, str] = field(default_factory=dict)  # pod -> its node
    _node_lost: bool = False  # an event names a node that is lost
    _nodes: bool = False  # a table of nodes was begun
    _listed: Counter[str] = field(default_factory=Counter)  # pods of each job in tables
    _started: set[str] = field(default_factory=set)  # pods that run or have run
    _pod: str | None = None  # that `describe` shows
    _last: str = ""  # "State" or "Last State"
    _container: dict[str, str] = field(default_factory=dict)
    _ends: dict[str, End] = field(default_factory=dict)
    _events: dict[tuple[str, str], LogEvent] = field(default_factory=dict)
    _ranks: dict[str, int] = field(default_factory=dict)  # of pods whose environment names it
    _names: set[str] = field(default_factory=set)  # of pods in tables
    _log_of: str | None = None  # the pod, or the end of its name
    _logged: dict[str, set[int]] = field(default_factory=dict)  # pod, or the end of its name -> ranks in its log

    def feed(self, text: str, number: int) -> None:
        self._feed_log(text[:MAX_LOG_LINE])
        self._node_lost = self._node_lost or "status is now: NodeNotReady" in text
        if self._columns and text.strip() and len(text.split()) != len(self._columns):
            self._columns = ()
        if _PODS.fullmatch(text) or (" get po" in text[:300] and _LISTED.search(text[:300])):
            self._table, self._pod, self._heads = True, None, _COLUMNS.split(text.strip())
        elif _CUSTOM.fullmatch(text):
            self._table, self._pod, self._columns = False, None, tuple(text.split())
        elif self._columns and len(cells := text.split()) == len(self._columns):
            self._custom(dict(zip(self._columns, cells, strict=True)), cells[0])
        elif _NODES.fullmatch(text):
            self._table, self._nodes = False, True
        elif self._table and (row := _ROW.fullmatch(text)):
            self._listed[_job_of(row["pod"])] += 1
            if len(self._names) < MAX_PODS:
                self._names.add(row["pod"])
                self._place(row["pod"], dict(zip(self._heads, _COLUMNS.split(text.strip()), strict=False)).get("NODE"))
            self._status(row["pod"], row["status"], number)
        elif name := _NAME.fullmatch(text):
            self._table, self._pod, self._last, self._container = False, name["pod"], "", {}
        elif "kubectl" in text[:200] and (asked := _ASKED.search(text[:500])):
            self._table, self._pod, self._last, self._container = False, asked["pod"], "", {}
        elif self._pod and (on := _NODE.fullmatch(text)):
            self._place(self._pod, on["node"])
        elif state := _STATE.fullmatch(text):
            self._last, self._container = state["what"], {"state": state["state"]}
        elif (own := _RANK.fullmatch(text)) and self._pod and len(self._ranks) < MAX_PODS:
            self._ranks[self._pod] = int(own["rank"])
        elif (one := _FIELD.fullmatch(text)) and self._pod:
            self._describe(one["name"], one["value"], number)
        elif "exitCode" in text and self._pod and (code := _EXIT_CODE.search(text[:2000])) and code["code"] != "0":
            self._end(self._pod, "OOMKilled" if "OOMKilled" in text[:2000] else "Error", int(code["code"]))
        elif self._nodes and (node := _NODE_ROW.fullmatch(text)):
            self._add("daemon_lost", node["node"], f"node {node['node']}: NotReady", number, "NotReady")
        elif "FailedCreate" in text and (refused := _REFUSED.search(text)):
            pod = refused["pod"]
            self._add_missing(pod, f"pod {pod} was not created: {refused['why']}"[:400], number, "FailedCreate")
        elif "init-pytorch" in text and (waits := _NO_MASTER.search(text)):
            pod = f"{waits['job']}-master-0"
            text = f"the init containers of the workers fail: they wait for {pod}, whose name does not resolve"
            self._add_missing(pod, text, number, "init-pytorch")
        elif event := _EVENT.search(text):
            self._event(event["reason"], event["rest"], text, number)

    def _place(self, pod: str, node: str | None) -> None:
        if node and node != "<none>" and len(self._hosts) < MAX_PODS:
            self._hosts[pod] = node

    def _feed_log(self, text: str) -> None:
        """A line of the log of a pod, or one that begins or ends it."""
        if "log" in text and (asked := _LOGS.search(text)):
            self._log_of = asked["pod"]
        elif prompt_of(text) or not text.strip():
            self._log_of = None
        elif heading := _HEADING.fullmatch(text):
            self._log_of = heading["pod"] or heading["label"]
        elif self._log_of and "rank" in text.lower() and len(self._logged) < MAX_PODS:
            ranks = self._logged.setdefault(self._log_of, set())
            if len(ranks) < MAX_RANKS_OF_POD:
                ranks.update(int(bracketed or named) for bracketed, named in _OWN_RANK.findall(text))

    def _ranks_of_logs(self) -> dict[str, int]:
        """The rank of each pod whose log names one that no other log does; of other pods of a job by its order."""
        found: dict[str, int] = {}
        used = Counter(rank for ranks in self._logged.values() for rank in ranks)
        by_end: dict[str, set[str]] = defaultdict(set)
        for pod in self._names:
            for end in (pod[at + 1 :] for at, letter in enumerate(pod) if letter == "-"):
                if end in self._logged:
                    by_end[end].add(pod)
        for name, ranks in self._logged.items():
            pods = {name} & self._names or by_end[name]
            if len(ranks) == 1 and len(pods) == 1 and used[min(ranks)] == 1:
                found[min(pods)] = min(ranks)
        return found | self._ordered(found)

    def _ordered(self, known: Mapping[str, int]) -> dict[str, int]:
        """The ranks of the other pods of a PyTorchJob, if those that are known are in its order."""
        by_job: dict[str, dict[str, int]] = defaultdict(dict)
        for pod in sorted(self._names):
            if member := node_of(pod):
                job, node = member
                by_job[job][pod] = node
        found: dict[str, int] = {}
        for ranks in by_job.values():
            shown = {pod: known[pod] for pod in ranks if pod in known}
            if len(shown) >= LEAST_CONFIRMED and all(ranks[pod] == rank for pod, rank in shown.items()):
                found |= ranks
        return found

    def _status(self, pod: str, status: str, number: int) -> None:
        word = status.rpartition(":")[2]
        if word in ("Running", "Completed", "Error", "OOMKilled", "CrashLoopBackOff", "Terminating"):
            self._started.add(pod)
        if word == "OOMKilled":
            self._end(pod, "OOMKilled", 137)
        elif word in WAITS:
            self._add("pod_waits", pod, f"pod {pod} has not started: {status}", number, word)
        elif word in ENDED:
            self._add(ENDED[word], pod, f"pod {pod}: {status}", number, word)

    def _custom(self, row: dict[str, str], pod: str) -> None:
        """A row of a table with columns of the user's choice."""
        numbers = {name: int(cell) for name, cell in row.items() if cell.isdecimal() and len(cell) < 7}
        of_number = _OF_RANK | _OF_NUMBER if self._ordinal_is_rank else _OF_RANK
        rank = next((number for name, number in numbers.items() if name in of_number), None)
        if rank is not None and len(self._ranks) < MAX_PODS:
            self._ranks[pod] = rank
        self._listed[_job_of(pod)] += 1
        if "OOMKilled" in row.values():
            self._end(pod, "OOMKilled", 137)

    def _rank_of(self, pod: str) -> int | None:
        """The rank of a pod, if the text states it."""
        if pod in self._ranks:
            return self._ranks[pod]
        ordinal = _ORDINAL.fullmatch(pod) if self._ordinal_is_rank else None
        stated = self._stated(pod)
        return int(ordinal[1]) if ordinal else stated[0] if len(stated) == 1 else None

    def _describe(self, name: str, value: str, number: int) -> None:
        pod = self._pod or ""
        if not self._last:
            if name == "Status" and value.split()[0] in ("Pending", "Running"):
                self._status(pod, value.split()[0], number)
            elif name == "Reason":
                self._status(pod, value, number)
            return
        self._container[name] = value
        if self._container.get("state") == "Waiting" and name == "Reason":
            self._status(pod, value, number)
        elif (
            self._container.get("state") == "Terminated" and name == "Exit Code" and value.isdigit() and len(value) < 4
        ):
            self._end(pod, self._container.get("Reason", ""), int(value))

    def _end(self, pod: str, reason: str, code: int) -> None:
        if len(self._ends) >= MAX_PODS:
            return
        if reason == "OOMKilled":
            line = f"pod {pod}: Killed process 1: container OOMKilled (exit code {code})"
            self._ends[pod] = End(signal=signal.SIGKILL, oom_kills=1, kernel=(line,))
        elif reason == "Error" and code:
            self._ends.setdefault(pod, End(signal=code - 128) if 128 < code < 160 else End(code=code))

    def _event(self, reason: str, rest: str, text: str, number: int) -> None:
        named = _OBJECT.search(text)
        pod = named["pod"] if named else self._pod
        if pod is None or (kind := KINDS.get(reason)) is None:
            return
        self._add(kind, pod, f"pod {pod}: {reason}: {' '.join(rest.split())}"[:400], number, reason)

    def _add(self, kind: str, pod: str, text: str, number: int, why: str, **more: str) -> None:
        if len(self._events) < MAX_PODS:
            fields = {"pod": pod, "host": pod, "why": why, **more}
            self._events.setdefault((kind, pod), LogEvent(kind, text, self.source, number, None, fields))

    def _add_missing(self, pod: str, text: str, number: int, why: str) -> None:
        """A pod that does not exist. The master of a PyTorchJob has rank 0."""
        self._add("pod_waits", pod, text, number, why, uncreated="yes")
        if (member := node_of(pod)) and member[1] == 0:
            self._ranks.setdefault(pod, 0)

    def pieces(self) -> Iterator[Piece]:
        """Without pods that stand alone in a list of several jobs: they may belong to anybody."""
        self._ranks = self._ranks_of_logs() | self._ranks
        for (kind, pod), event in self._events.items():
            if self._foreign(pod) or (kind == "pod_waits" and pod in self._started):
                continue
            if kind == "node_failed" and (self._node_lost or pod in self._hosts):
                if node := self._hosts.get(pod):
                    own = replace(event, fields={**event.fields, "host": node})
                    yield Piece(ProcessRef(None, node), "logs", Logs((own,)))
                continue
            yield Piece(ProcessRef(self._rank_of(pod), pod), "logs", Logs((event,)))
        for pod, end in self._ends.items():
            if self._foreign(pod):
                continue
            ranks = self._stated(pod) if self._rank_of(pod) is None else ()
            for rank in ranks:
                yield Piece(ProcessRef(rank, pod), "end", end)
            if not ranks:
                yield Piece(ProcessRef(self._rank_of(pod), pod, CONTAINER_PID), "end", end)

    def _foreign(self, pod: str) -> bool:
        return len(self._listed) > 1 and self._listed[_job_of(pod)] == 1


def _job_of(pod: str) -> str:
    """The name of a pod without its role, its number and a random ending: `llm-worker-3` -> `llm`."""
    return _MEMBER.sub("", pod)


READER = KubernetesReader()
