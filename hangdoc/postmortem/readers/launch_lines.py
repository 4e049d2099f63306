"""Command lines of launchers, and variables of the environment, that people collect from several hosts or ranks.

`pdsh pgrep -af torchrun`, `ps` over ssh, a launch script per node, `srun -l env`, `kubectl exec POD -- env`: torchrun,
torch.distributed.run and launch, Accelerate and DeepSpeed (torch/distributed/run.py; accelerate/commands/launch.py;
deepspeed/launcher/launch.py); and lines in which each rank prints where it looks for the store. The owner of a line is
the rank that it names beside that address, the label in front of it, the prompt or the command above it, or a heading.
All names are those of torchrun.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._host_names import is_host_name, prompt_of
from hangdoc.postmortem.readers._pasted_text import text_lines
from hangdoc.postmortem.readers._text_source import TextSource, placement_in, text_source
from hangdoc.redaction.text import redact_text

KIND = "launch_setting"
MAX_OWNERS = 4096
MAX_HEADING = 160  # characters
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
# A line that a rank prints: `[init] rank=0 world=4 MASTER_ADDR=localhost`, `distributed init (rank 2): tcp://n1:29500`.
_PRINTED_RANK = re.compile(
    r"(?<![\w.-])(?<!local )(?<!node )(?<!parallel )(?<![dtpe]p )(?:global[ _])?rank(?:\s?[=:]\s?|[ _]?)"
    r"(?P<rank>\d{1,6})(?![\w.])(?:\s?(?:/|of)\s?(?P<size>\d{1,6})\b)?",
    re.IGNORECASE,
)
_PRINTED_SIZE = re.compile(r"(?<![\w.-])world(?:[ _]?size)?\s?[=: ]\s?(\d{1,6})\b", re.IGNORECASE)
_PRINTED_STORE = re.compile(
    r"(?<![\w$])(?:(?P<what>master[_ ]?(?:addr(?:ess)?|port))[\"']?\s?[=:]\s?[\"']?|(?P<url>tcp://))"
    r"(?P<value>[\w.:\[\]-]{1,200})",
    re.IGNORECASE,
)
# torchrun's own list (torch/distributed/launcher/api.py): `...launcher/api.py:194]   rdzv_endpoint    : localhost:2951`
_CONFIGURED = re.compile(
    r"\]\s{1,8}(?P<name>min_nodes|max_nodes|rdzv_endpoint|rdzv_backend)\s{1,12}: (?P<value>[^\s'\",;]{1,200})\s*"
)
_OF_STORE = re.compile(r"init|rendezvous|rdzv|dist[_ -]?url|store", re.IGNORECASE)  # beside a URL, which may be any
_ENDPOINT = re.compile(r"(?P<address>[^:]{1,200}|\[[\da-fA-F:]{2,45}\]):(?P<port>\d{1,5})")
_RANK = re.compile(r"[0-9]{1,6}")
_SCRIPT = re.compile(r"(?<!\S)(?:-m (?P<module>[\w.]{3,100})|(?P<file>[\w./-]{1,200}\.py))(?=\s|$)")
# Names of other launchers and of variables, in those of torchrun.
_ALIASES = {
    "num_machines": "nnodes", "machine_rank": "node_rank", "main_process_ip": "master_addr",
    "main_process_port": "master_port", "num_processes": "world_size", "MASTER_ADDR": "master_addr",
    "MASTER_PORT": "master_port", "WORLD_SIZE": "world_size", "NODE_RANK": "node_rank", "NNODES": "nnodes",
    "RANK": "rank", "min_nodes": "nnodes",
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
_ADDRESS = r"(?:\d{1,3}\.){3}\d{1,3}"
_HEADING = re.compile(
    rf"(?P<mark>\W{{0,8}})(?:(?:on|from|and) )?"
    rf"(?:(?:the )?(?:node|machine|host|server|box|pod)(?: ?#| )(?P<ordinal>\d{{1,4}}|[A-Z])"
    rf"|(?:the )?(?:host|node|machine|server|pod|box) ?[:=]? ?(?P<host>{_NAME}|{_ADDRESS})"
    rf"|rank ?[:=]? ?(?P<rank>\d{{1,6}})|(?P<name>{_NAME}|{_ADDRESS}))"
    rf"(?:,? ?[(\[,@=-]{{0,2}} ?(?:[A-Za-z][\w.-]{{0,30}}[,:= ]{{1,2}}){{0,3}}(?P<address>{_ADDRESS})"
    rf"(?:,? [\w. -]{{1,40}})?[)\]]?"
    rf"|,? ?\([A-Za-z][\w ,.:/#-]{{1,60}}\))?"
    rf"(?P<end>\s?(?::|=+|-+|\*+)\W{{0,8}})?",
    re.IGNORECASE,
)
_ADDRESSED = re.compile(rf"\s{{0,8}}{_NAME} ?[(\[]{_ADDRESS}[)\]]\s*")
_ROLE = re.compile(
    r"(?:master|head|leader|main|primary|worker|slave|secondary|first|second|third)[-_ ]?\d{0,4}", re.IGNORECASE
)
_WORDS = frozenset({"env", "note", "edit", "update", "and", "output", "command", "error", "warning", "here", "node"})
MAX_CONTINUED = 40  # lines of one command, all but the last of which end in a backslash
MAX_COMMAND = 4000  # characters
MARKS = (
    *("torchrun", "torch.distributed.run", "torch.distributed.launch", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE="),
    *("master_addr", "master_port", "tcp://", "rdzv_endpoint"),
)


@dataclass(slots=True)
class _Owner:
    """The settings of one host or rank."""

    line: int
    text: str
    values: dict[str, set[str]] = field(default_factory=dict)
    address: str | None = None  # in its heading
    machine: bool = False  # it is no other word above a command, such as `before:`
    hosts: set[str] = field(default_factory=set)  # of a rank


class LaunchReader:
    name = "launch command lines"
    order = 62
    marks = MARKS
    help = '`pdsh -w HOSTS "pgrep -af torchrun"`, or `srun -l env | grep -E "MASTER_|WORLD_SIZE|RANK="`'

    def recognises(self, source: Source) -> bool:
        text = source.head.decode("utf-8", "replace")
        return sum(1 for _, line in _commands(text.splitlines()) if _settings(line)) >= 2

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        text = text_source(source, context)
        found = _Owners()
        for number, command in _commands(text_lines(text, context)):
            found.feed(command, number)
        host_of = text.addresses.host_of if isinstance(text, TextSource) else lambda address: None
        yield from found.pieces(source.name, host_of, placement_in(source).hosts)


def _commands(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The lines with their numbers; those that a backslash continues as one."""
    start, parts = 0, list[str]()
    for number, text in enumerate(lines, 1):
        start = start if parts else number
        parts.append(text[:MAX_COMMAND].rstrip())
        if parts[-1].endswith("\\") and len(parts) < MAX_CONTINUED:
            parts[-1] = parts[-1][:-1]
            continue
        yield start, " ".join(parts)[:MAX_COMMAND] if len(parts) > 1 else parts[0]
        parts = []
    if parts:
        yield start, " ".join(parts)[:MAX_COMMAND]


@dataclass(slots=True)
class _Owners:
    _owners: dict[tuple[str, str], _Owner] = field(default_factory=dict)  # (what: "host" or "rank", name)
    _context: tuple[str, str] | None = None
    _address: str | None = None  # of the host in the heading above
    _logged_in: bool = False  # a prompt or a command of the shell names the host

    def feed(self, text: str, number: int) -> None:
        command = text
        if prompt := prompt_of(text):
            command = prompt.command
            if prompt.states_host:
                self._context, self._address = ("host", prompt.host) if prompt.host else None, None
                self._logged_in = True
        elsewhere = _ELSEWHERE.search(command)
        if elsewhere:
            self._context, self._address, self._logged_in = ("host", elsewhere["host"]), None, True
        elif (heading := _heading(text)) and not _settings(text):
            self._context, self._address, self._logged_in = _owner_of(heading), heading["address"], False
        settings = _settings(command)
        if not settings:
            return
        label = _LABEL.match(text)
        labelled = _owner_of(label) if label else None
        owner = labelled or self._context
        on = owner[1] if owner and owner[0] == "host" else None
        if _RANK.fullmatch(settings.get("rank", "")) and settings.keys() & {"master_addr", "master_port"}:
            owner = "rank", str(int(settings["rank"]))  # a line of one rank
        if owner is None and "node_rank" in settings:
            owner = "node", settings["node_rank"]
        if owner is None and _RANK.fullmatch(settings.get("rank", "")):
            owner = "rank", settings["rank"]
        if owner is None or len(self._owners) >= MAX_OWNERS:
            return
        address = None if labelled else self._address
        machine = (not labelled and self._logged_in) or _is_host(*owner, address)
        known = self._owners.setdefault(owner, _Owner(number, text, {}, address, machine))
        known.hosts |= {on} if on and owner[0] == "rank" else set()
        for name, value in settings.items():
            known.values.setdefault(name, set()).add(value)

    def pieces(self, source: str, host_of: Callable[[str], str | None], placed: Mapping[int, str]) -> Iterator[Piece]:
        """One event for each owner; a setting with several values belongs to several jobs, and is left out.

        `host_of`: the host of an address, as the text states it. `placed`: the hosts of ranks, likewise.
        """
        if len(self._owners) < 2:
            return
        for (what, name), owner in self._owners.items():
            fields = {key: next(iter(values)) for key, values in owner.values.items() if len(values) == 1}
            fields |= {"owner": f"{what} {name}" if what != "host" else name}
            address = owner.address or _own_address(name, fields, host_of)
            fields |= {"address": address} if address else {}
            fields |= {"machine": "yes"} if what != "rank" and owner.machine else {}
            several = (*owner.values.values(), owner.hosts)
            fields |= {"ambiguous": "yes"} if any(len(values) > 1 for values in several) else {}
            rank = int(name) if what == "rank" else None
            host = name if what == "host" else next(iter(owner.hosts)) if len(owner.hosts) == 1 else None
            host = host or (placed.get(rank) if rank is not None else None)
            fields |= {"host": host} if host else {}
            event = LogEvent(KIND, redact_text(owner.text.strip())[:400], source, owner.line, None, fields)
            yield Piece(ProcessRef(rank, host), "logs", Logs((event,)))


def _own_address(owner: str, settings: Mapping[str, str], host_of: Callable[[str], str | None]) -> str | None:
    """The address of the store, if it is known to be that of the owner."""
    address = settings.get("master_addr") or settings.get("rdzv_endpoint", "").rpartition(":")[0]
    host = host_of(address) if address else None
    return address if host and host.partition(".")[0].lower() == owner.partition(".")[0].lower() else None


def _heading(text: str) -> re.Match[str] | None:
    """The owner in a heading: a line that ends in a colon or a ruler, or begins with one and names a host."""
    found = _HEADING.fullmatch(text) if len(text) <= MAX_HEADING else None
    if found is None or found["end"]:
        return found
    if _ADDRESSED.fullmatch(text):
        return found
    names_host = found["address"] or found["host"] or found["ordinal"] or is_host_name(found["name"] or "")
    return found if found["mark"].strip(" \t>|") and names_host else None


def _is_host(what: str, name: str, address: str | None) -> bool:
    """True if an owner is a machine, and no word above a command, such as `before:`."""
    return what == "node" or address is not None or is_host_name(name) or _ROLE.fullmatch(name) is not None


def _owner_of(match: re.Match[str]) -> tuple[str, str] | None:
    found = match.groupdict()
    if found.get("rank"):
        return "rank", str(int(found["rank"]))
    if found.get("ordinal"):
        return "node", found["ordinal"]
    host = found.get("host") or found.get("name")
    return ("host", host) if host and host.lower() not in _WORDS else None


def _settings(text: str) -> Mapping[str, str]:
    """What a command line or a line of the environment sets; values that a shell would expand are unknown."""
    launcher = _LAUNCHER.search(text)
    if launcher is None and _PROCESS.search(text):
        return {}  # a row of `ps e`, which has a reader of its own
    found = {match["name"]: match["value"] for match in _VARIABLE.finditer(text)}
    if launcher is None:
        found |= _printed(text)
        if configured := _CONFIGURED.search(text):
            found[configured["name"]] = configured["value"]
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


def _printed(text: str) -> Mapping[str, str]:
    """What a rank prints of itself and of the store, if both are in one line."""
    rank = _PRINTED_RANK.search(text)
    urls = rank is not None and _OF_STORE.search(text) is not None
    stores = [one for one in _PRINTED_STORE.finditer(text) if one["what"] or urls] if rank else []
    if rank is None or not stores:
        return {}
    found = {"rank": rank["rank"]}
    size = _PRINTED_SIZE.search(text)
    if named := size[1] if size else rank["size"]:
        found["world_size"] = named
    for store in stores:
        value = store["value"].rstrip(".:")
        endpoint = _ENDPOINT.fullmatch(value)
        if endpoint:
            found |= {"master_addr": endpoint["address"], "master_port": endpoint["port"]}
        elif store["what"]:
            found["master_port" if store["what"].lower().endswith("port") else "master_addr"] = value
    return found


READER = LaunchReader()
