"""Command lines of launchers, and variables of the environment, that people collect from several hosts or ranks.

`pdsh pgrep -af torchrun`, `ps` over ssh, a launch script per node, `srun -l env`, `kubectl exec POD -- env`: torchrun,
torch.distributed.run and launch, Accelerate and DeepSpeed (torch/distributed/run.py; accelerate/commands/launch.py;
deepspeed/launcher/launch.py). The owner of a line is the label in front of it, the prompt or the command above it, or a
heading. All names are those of torchrun.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._owner_hints import prompt_of
from hangdoc.postmortem.readers._pasted_text import text_lines
from hangdoc.redaction.text import redact_text

KIND = "launch_setting"
MAX_OWNERS = 4096
MAX_VALUE = 200  # characters
_NAME = r"[A-Za-z][\w.-]{0,252}"
_LAUNCHER = re.compile(
    r"\btorchrun\b|torch[./]distributed[./](?:run|launch)\b|\baccelerate(?:\.commands\.launch| launch|-launch)\b"
    r"|\bdeepspeed(?:\.launcher\.launch)?\b"
)
_PROCESS = re.compile(r"\bpython[\d.]* ")
_ARGUMENT = re.compile(r"(?<!\S)--(?P<name>[a-z][a-z_-]{2,30})[= ](?P<value>[^\s'\"\\]{1,200})")
_VARIABLE = re.compile(
    r"(?<![\w$])(?P<name>MASTER_ADDR|MASTER_PORT|WORLD_SIZE|NODE_RANK|NNODES|RANK)=[\"']?(?P<value>[^\s'\";,\\]{1,200})"
)
_RANK = re.compile(r"[0-9]{1,6}")
_SCRIPT = re.compile(r"(?<!\S)(?:-m (?P<module>[\w.]{3,100})|(?P<file>[\w./-]{1,200}\.py))(?=\s|$)")
# Names of other launchers and of variables, in those of torchrun.
_ALIASES = {
    "num_machines": "nnodes", "machine_rank": "node_rank", "main_process_ip": "master_addr",
    "main_process_port": "master_port", "num_processes": "world_size", "MASTER_ADDR": "master_addr",
    "MASTER_PORT": "master_port", "WORLD_SIZE": "world_size", "NODE_RANK": "node_rank", "NNODES": "nnodes",
    "RANK": "rank",
}  # fmt: skip
_KEPT = frozenset(
    {
        "nnodes",
        "node_rank",
        "master_addr",
        "master_port",
        "rdzv_endpoint",
        "rdzv_id",
        "rdzv_backend",
        "world_size",
        "rank",
    }
)
_LABEL = re.compile(
    rf"[\s>|]{{0,8}}(?:\[?(?:rank|RANK)?[ _-]?(?P<rank>\d{{1,6}})\]?|\[?(?P<host>{_NAME})\]?) ?(?::|\|)\s+(?=\S)"
)
_ELSEWHERE = re.compile(rf"\b(?:ssh (?:-\w+ )*(?:[\w.-]{{1,32}}@)?|exec (?:-\w+ ){{0,4}}(?:pod/)?)(?P<host>{_NAME})\b")
_HEADING = re.compile(
    rf"\W{{0,8}}(?:(?:on|from|and) )?(?:(?:host|node|machine|server|pod) ?[:=]? ?(?P<host>{_NAME})|rank ?[:=]?"
    rf" ?(?P<rank>\d{{1,6}})|(?P<name>{_NAME}))\s?(?::|=+|-+)\W{{0,8}}"
)
_WORDS = frozenset({"env", "note", "edit", "update", "and", "output", "command", "error", "warning", "here", "node"})
MARKS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "MASTER_ADDR=", "MASTER_PORT=", "WORLD_SIZE=")


@dataclass(slots=True)
class _Owner:
    """The settings of one host or rank."""

    line: int
    text: str
    values: dict[str, set[str]] = field(default_factory=dict)


class LaunchReader:
    name = "launch command lines"
    order = 62
    marks = MARKS
    help = '`pdsh -w HOSTS "pgrep -af torchrun"`, or `srun -l env | grep -E "MASTER_|WORLD_SIZE|RANK="`'

    def recognises(self, source: Source) -> bool:
        text = source.head.decode("utf-8", "replace")
        return sum(1 for line in text.splitlines() if _settings(line)) >= 2

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        found = _Owners()
        for number, text in enumerate(text_lines(source, context), 1):
            found.feed(text[:4000], number)
        yield from found.pieces(source.name)


@dataclass(slots=True)
class _Owners:
    _owners: dict[tuple[str, str], _Owner] = field(default_factory=dict)  # (what: "host" or "rank", name)
    _context: tuple[str, str] | None = None

    def feed(self, text: str, number: int) -> None:
        command = text
        if prompt := prompt_of(text):
            command = prompt.command
            if prompt.states_host:
                self._context = ("host", prompt.host) if prompt.host else None
        elsewhere = _ELSEWHERE.search(command)
        if elsewhere:
            self._context = "host", elsewhere["host"]
        elif (heading := _HEADING.fullmatch(text)) and not _settings(text):
            self._context = _owner_of(heading)
        settings = _settings(command)
        if not settings:
            return
        label = _LABEL.match(text)
        owner = (_owner_of(label) if label else None) or self._context
        if owner is None and "node_rank" in settings:
            owner = "node", settings["node_rank"]
        if owner is None and _RANK.fullmatch(settings.get("rank", "")):
            owner = "rank", settings["rank"]
        if owner is None or len(self._owners) >= MAX_OWNERS:
            return
        known = self._owners.setdefault(owner, _Owner(number, text))
        for name, value in settings.items():
            known.values.setdefault(name, set()).add(value)

    def pieces(self, source: str) -> Iterator[Piece]:
        """One event for each owner; a setting with several values belongs to several jobs, and is left out."""
        if len(self._owners) < 2:
            return
        for (what, name), owner in self._owners.items():
            fields = {key: next(iter(values)) for key, values in owner.values.items() if len(values) == 1}
            fields |= {"owner": f"{what} {name}" if what != "host" else name}
            fields |= {"ambiguous": "yes"} if any(len(values) > 1 for values in owner.values.values()) else {}
            event = LogEvent(KIND, redact_text(owner.text.strip())[:400], source, owner.line, None, fields)
            rank = int(name) if what == "rank" else None
            yield Piece(ProcessRef(rank, name if what == "host" else None), "logs", Logs((event,)))


def _owner_of(match: re.Match[str]) -> tuple[str, str] | None:
    found = match.groupdict()
    if found.get("rank"):
        return "rank", str(int(found["rank"]))
    host = found.get("host") or found.get("name")
    return ("host", host) if host and host.lower() not in _WORDS else None


def _settings(text: str) -> Mapping[str, str]:
    """What a command line or a line of the environment sets; values that a shell would expand are unknown."""
    launcher = _LAUNCHER.search(text)
    if launcher is None and _PROCESS.search(text):
        return {}  # a row of `ps e`, which has a reader of its own
    found = {match["name"]: match["value"] for match in _VARIABLE.finditer(text)}
    if launcher is not None:
        if "--standalone" in text:
            return {}
        arguments = {match["name"].replace("-", "_"): match["value"] for match in _ARGUMENT.finditer(text)}
        found |= arguments
        if not arguments.keys() & {*_KEPT, *_ALIASES}:
            return {}
        if script := _SCRIPT.search(text, launcher.end()):
            found["script"] = (script["module"] or script["file"]).rpartition("/")[2]
    named = {_ALIASES.get(name, name): value[:MAX_VALUE] for name, value in found.items() if "$" not in value}
    kept = {name: value for name, value in named.items() if name in _KEPT or name == "script"}
    return kept if kept.keys() - {"script"} else {}


READER = LaunchReader()
