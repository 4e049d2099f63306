"""The layout of a job that launchers make: so many ranks on each node, node after node.

torchrun gives node k the ranks k*n to k*n+n-1 (`_assign_worker_ranks` in its agent/server/api.py); accelerate,
DeepSpeed and `mpirun --map-by slot` do the same, and so do the start scripts of people (`node_order`). A host file
lists `HOST slots=N` in the order of the ranks. DeepSpeed prints its mapping (deepspeed/launcher/launch.py):
`global_rank_mapping=defaultdict(<class 'list'>, {'n11': [0, 1]})`, and gives each node the list of all of them
(`--world_info`, launcher/runner.py). On one node, CUDA_VISIBLE_DEVICES lists the GPUs in the order of the local ranks.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from hangdoc.evidence import limits
from hangdoc.postmortem.readers._host_names import NAME, is_host_name, prompt_of, written_number
from hangdoc.postmortem.readers._placement.host_lists import HostLists
from hangdoc.postmortem.readers._placement.job_hosts import JobHosts
from hangdoc.postmortem.readers._placement.node_order import NodeOrder
from hangdoc.postmortem.readers._placement.pod_order import PodOrder
from hangdoc.postmortem.readers._placement.statements import Seat
from hangdoc.postmortem.readers._placement.tokens import may_be_host

MAX_LINE = 600  # characters
MAX_PER_NODE = 1024
MAX_ENCODED = 16_000  # characters of a line with DeepSpeed's list of hosts
MAX_MAPPED = 4096  # hosts in one line
_UNIT = r"(?:gpus?|ranks?|proc(?:s|ess(?:es)?)?|workers?|tasks?|gcds?|devices?|accelerators?)"
_PER_NODE = re.compile(
    rf"--?n(?:um)?[_-]?proc(?:s|esses)?[_-]per[_-](?:node|machine)[= ](\d{{1,4}})"
    rf"|--(?:ntasks|gpus)-per-node[= ](\d{{1,4}})"
    rf"|(?<![\w.])(\d{{1,4}}) ?(?:x )?{_UNIT} ?(?:per|a|each|/|on each|on every) ?(?:node|host|machine|box|server)\b"
    rf"|(?<![\w.])(?:\d{{1,4}}) (?:nodes|hosts|machines|boxes|servers) ?(?:x|\*|\u00d7|with|of) ?(\d{{1,4}})(?!\w|\.\d)"
    r"|\brank ?= ?(\d{1,4}) ?\* ?node"
    rf"|(?<![\w.])(\d{{1,4}}) {_UNIT} each\b"
    r"|\branks?\b[^.\n\d]{0,60}?[ ,(](\d{1,4}) (?:per|on each|on every) (?:node|host|machine|box|server)\b"
    r"|\bNPROC_PER_NODE[= ](\d{1,4})|\bLOCAL_WORLD_SIZE[= ](\d{1,4})",
    re.IGNORECASE,
)
# `2x4 gpus`, `2 x 8 A100`: nodes, and what each has.
_GRID = re.compile(
    r"(?<![\w.x*])(\d{1,4}) ?(?:x|\*|\u00d7) ?(\d{1,4})(?: ?x)?[ -]?"
    r"(?:gpus?|ranks?|procs?|processes|gcds?|devices|accelerators"
    r"|(?:nvidia[ -]?)?(?:[ahv]\d{2,3}s?|mi\d{3}x?|b200|l40s?|rtx ?\w{4,6}))\b",
    re.IGNORECASE,
)
# `16 ranks on 2 nodes`, `24 ranks / 6 nodes`: how many there are in all.
_TOTAL = re.compile(
    rf"(?<![\w.-])(\d{{1,6}}) ?{_UNIT} ?(?:on|/|over|across|in total on|, ?|\()"
    r" ?(\d{1,4}) ?(?:nodes|hosts|machines|boxes|servers)\b",
    re.IGNORECASE,
)
# `Two-node DDP, 16 ranks`; of GPUs it would not be clear whether each node has so many.
_TOTAL_BEHIND = re.compile(
    r"(?<![\w.-])(\d{1,4}|two|three|four|six|eight)[ -](?:nodes?|hosts?|machines?)\b[^.\n\d]{0,24}?[,(] ?"
    r"(\d{1,6}) (?:ranks|processes)\b(?! ?(?:each|per|a|/|on each|on every)\b)",
    re.IGNORECASE,
)
_ONE_NODE = re.compile(  # `8 GPUs in one pod`
    rf"(?<![\w.])\d{{1,4}} ?(?:x )?{_UNIT} (?:in|on) (?:one|a single|1) (?:node|host|machine|box|server|pod)\b",
    re.IGNORECASE,
)
# A launcher's own command line: which node this is, and how many there are.
_NODES = re.compile(
    r"(?<![\w-])--?n(?:um)?[_-]?(?:nodes|machines)[= ](?:\d{1,4}:)?(\d{1,4})\b|\bNNODES=(\d{1,4})\b", re.IGNORECASE
)
# The command line that starts one node: its number counts unless the nodes agree on their numbers themselves.
_NODE_RANK = re.compile(r"(?<![\w-])--(?:node|machine)[_-]rank[= ](\d{1,4})(?=\s|$)|\bNODE_RANK=(\d{1,4})(?=\s|$)")
_AGREED = re.compile(r"--rdzv[_-](?:backend|endpoint)\b")
_AT_HOST = re.compile(
    rf"\W{{0,4}}({NAME})\]?(?::\s|\s?\|\s)|(?:.{{0,80}}[\s;])?ssh (?:-\w+ ){{0,4}}(?:[\w.-]{{1,32}}@)?({NAME})\s"
)
_ON_LOOPBACK = re.compile(r"--master[_-]addr[= ](?:127\.0\.0\.1|localhost)\b")
# torchrun has one node unless it is told otherwise; a line that is cut or goes on may tell it.
_ONE_LAUNCHER = re.compile(
    r"(?:\btorchrun|\btorch\.distributed\.(?:run|launch)|torch/distributed/(?:run|launch)\.py)\s"
    r"(?=[^\n]{0,400}--nproc[_-]per[_-]node)(?![^\n]{0,1000}(?:n?node(?:s|[_-]rank)\b|rdzv|master|\.{3}|\\$))"
)
_FAILED = re.compile(r"\brank\s{0,8}: (\d{1,6}) \(local_rank: (\d{1,4})\)")  # torchrun's table of failures
_MAPPED = re.compile(rf"'(?!localhost'|127\.)({NAME})': \[(\d{{1,6}}(?:, \d{{1,6}}){{0,63}})\]")
_SLOTS = re.compile(rf"\W{{0,4}}({NAME})\s{{1,20}}slots ?= ?(\d{{1,4}})\s*(?:max_slots=\d{{1,4}})?\s*")
_WORLD_INFO = re.compile(r"--world_info[= ]([A-Za-z0-9_=+/-]{8,12000})(?=\s|$)")  # base64 of JSON: host -> GPUs
_VISIBLE = re.compile(
    r"\b(?:CUDA|HIP|ROCR|ASCEND_RT|ZE)_(?:VISIBLE_DEVICES|AFFINITY_MASK)=[\"']?(\d{1,3}(?:,\d{1,3}){1,63})(?![\d,])"
)
_BY_SLOT = re.compile(r"\b(?:mpirun|mpiexec|orterun|deepspeed|horovodrun|hostfile)\b", re.IGNORECASE)
_OTHER_ORDER = re.compile(
    r"--?map-by[ =]?(?:ppr:1:)?node|--?bynode|--?rankfile|--include|--exclude|cyclic", re.IGNORECASE
)


@dataclass(slots=True)
class JobLayout:
    """Takes the lines of a text in order."""

    several_nodes: bool = False  # the text says that the job has several
    one_node: bool = False  # a launcher's command line says that it has one
    first_node: bool = False  # a rank has its own number on its host
    _sizes: Counter[int] = field(default_factory=Counter)
    _per_node_said: bool = False  # a line says what each node has, and not only `4 x 8 GPUs`
    _worlds: bool = False  # a command line of DeepSpeed's launcher was read
    _mapped: list[Seat] = field(default_factory=list)
    _slots: dict[str, int] = field(default_factory=dict)
    _visible: set[tuple[int, ...]] = field(default_factory=set)  # lists of GPUs that a job may use
    _twice: bool = False  # a second list gives a host another place
    _in_order: bool = False
    _other: bool = False
    _started: set[tuple[int, str]] = field(default_factory=set)  # node and host of launchers' command lines
    _order: NodeOrder = field(default_factory=NodeOrder)
    _pods: PodOrder = field(default_factory=PodOrder)
    _lists: HostLists = field(default_factory=HostLists)
    _hosts: JobHosts = field(default_factory=JobHosts)

    def feed(self, text: str) -> None:
        if "global_rank_mapping" in text[:MAX_LINE]:
            self._mapped += [_mapped(*found.groups()) for found in islice(_MAPPED.finditer(text), MAX_MAPPED)]
        self._order.feed(text)
        self._lists.feed(text)
        self._hosts.feed(text)
        self._pods.feed(text)
        if "world_info" in text[:MAX_ENCODED] and (encoded := _WORLD_INFO.search(text[:MAX_ENCODED])):
            self._add_world(_hosts_in(encoded[1]))
        if len(text) > MAX_LINE:
            return
        if len(self._started) < MAX_MAPPED and (started := _started(text)):
            self._started.add(started)
        for found in _PER_NODE.finditer(text):
            size = int(next(group for group in found.groups() if group))
            if 0 < size <= MAX_PER_NODE:
                self._sizes[size] += 1
                self._per_node_said = True
        for found in (*_GRID.finditer(text), *_TOTAL.finditer(text)):
            first, second = int(found[1]), int(found[2])
            grid = found.re is _GRID
            nodes, size = (first, second) if grid else (second, first // max(second, 1))
            if nodes > 1 and 0 < size <= MAX_PER_NODE and (grid or first == nodes * size):
                self._sizes[size] += 1
                self.several_nodes = True
        if behind := _TOTAL_BEHIND.search(text):
            nodes, total = written_number(behind[1]) or 0, int(behind[2])
            if nodes > 1 and total % nodes == 0 and 0 < total // nodes <= MAX_PER_NODE:
                self._sizes[total // nodes] += 1
                self.several_nodes = True
        for found in _NODES.finditer(text):
            self._count_nodes(int(found[1] or found[2]))
        self.one_node = self.one_node or any(one.search(text) for one in (_ON_LOOPBACK, _ONE_LAUNCHER, _ONE_NODE))
        if failed := _FAILED.search(text):
            self.first_node = self.first_node or failed[1] == failed[2]
            self.several_nodes = self.several_nodes or failed[1] != failed[2]
        if len(self._visible) < 2 and (visible := _VISIBLE.search(text)):
            self._visible.add(tuple(map(int, visible[1].split(","))))
        if slots := _SLOTS.fullmatch(text):
            name, count = slots[1].lower(), int(slots[2])
            self._twice = self._twice or name in self._slots
            if len(self._slots) < limits.MAX_RANKS and 0 < count <= MAX_PER_NODE:
                self._slots.setdefault(name, count)
        self._in_order = self._in_order or _BY_SLOT.search(text) is not None
        self._other = self._other or _OTHER_ORDER.search(text) is not None

    def _count_nodes(self, count: int) -> None:
        self.several_nodes = self.several_nodes or count > 1
        self.one_node = self.one_node or count == 1

    def _add_world(self, slots: Mapping[str, int]) -> None:
        """The nodes of a job in order, and how many ranks each has."""
        self._count_nodes(len(slots))
        sizes = set(slots.values())
        if len(sizes) == 1:
            self._sizes[sizes.pop()] += 1
        first = 0
        for host, count in slots.items():
            if not self._worlds and is_host_name(host):
                self._mapped.append(_block(host, first, count))
            first += count
        self._worlds = self._worlds or bool(slots)

    @property
    def per_node(self) -> int | None:
        """Ranks on each node; None: not stated, or not the same everywhere."""
        sizes = self._sizes.keys() | self._order.sizes | self._hosts.sizes
        return next(iter(sizes)) if len(sizes) == 1 else None

    def seats(self, stated: Sequence[Seat]) -> Iterator[Seat]:
        """What follows for each host, if the order of the nodes is stated."""
        yield from self._mapped
        if not self._other and not self._twice and self._in_order and len(self._slots) > 1:
            first = 0
            for host, count in self._slots.items():
                yield _block(host, first, count)
                first += count
        for hosts in self._lists.found if not self._other else ():
            first = 0
            for host, count in hosts:
                yield _block(host, first, count)
                first += count
        size = self.per_node
        for gpus in self._visible if len(self._visible) == 1 and not self.several_nodes else ():
            used = gpus[:size]
            if used != tuple(range(len(used))):  # else the numbers are the same anyway
                yield Seat(tuple(range(len(used))), gpus=used)
        if size is not None and not self._other:
            for node, host in (*self._order.numbers().items(), *enumerate(self._hosts.hosts)):
                if node < limits.MAX_RANKS // size:
                    yield _block(host, node * size, size)
        of_pod = (size if self._per_node_said else None) or self._pods.ranks_of_each
        for node, pod in self._pods.numbers().items() if of_pod is not None else ():
            if of_pod is not None and node < limits.MAX_RANKS // of_pod:
                yield _block(pod, node * of_pod, of_pod)
        nodes = {(seat.nodes[0], seat.host) for seat in stated if len(seat.nodes) == 1 and seat.host and not seat.ranks}
        nodes |= {(node, host) for node, host in self._started if len(self._started) > 1}
        if size is not None and len({node for node, _ in nodes}) == len({host for _, host in nodes}) == len(nodes):
            for node, host in sorted(nodes):
                if node < limits.MAX_RANKS // size:
                    yield _block(host, node * size, size)
        yield from _of_nodes(stated)


def _started(text: str) -> tuple[int, str] | None:
    """The number and the host of the node that a launcher's command line starts."""
    number = None if _AGREED.search(text) else _NODE_RANK.search(text)
    if number is None:
        return None
    prompt, label = prompt_of(text), _AT_HOST.match(text[: number.start()])
    host = prompt.host if prompt else (label[1] or label[2]) if label else None
    return (int(number[1] or number[2]), host.lower()) if host and may_be_host(host) else None


def _of_nodes(stated: Sequence[Seat]) -> Iterator[Seat]:
    """The ranks of hosts, where the text says which ranks a node has, and which host it is."""
    hosts = {(seat.nodes[0], seat.host) for seat in stated if len(seat.nodes) == 1 and seat.host and not seat.ranks}
    ranks = {(seat.nodes[0], seat.ranks) for seat in stated if len(seat.nodes) == 1 and len(seat.ranks) > 1}
    if any(len({node for node, _ in pairs}) != len(pairs) for pairs in (hosts, ranks)):
        return
    of_node = dict(ranks)
    for node, host in sorted(hosts):
        if node in of_node:
            yield Seat(of_node[node], host, locals=tuple(range(len(of_node[node]))))


def _mapped(host: str, ranks: str) -> Seat:
    """A host in DeepSpeed's mapping: `'n11': [0, 1, 2, 3]`."""
    numbers = tuple(int(one) for one in ranks.split(", "))
    return Seat(numbers, host, locals=tuple(range(len(numbers))))


def _hosts_in(encoded: str) -> dict[str, int]:
    """The hosts in DeepSpeed's `--world_info`, and how many ranks each has; empty: not readable."""
    try:
        world = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(world, dict) or not 0 < len(world) <= MAX_MAPPED:
        return {}
    counts = {str(host): len(gpus) for host, gpus in world.items() if isinstance(gpus, list)}
    fits = len(counts) == len(world) and all(0 < count <= MAX_PER_NODE for count in counts.values())
    return counts if fits and sum(counts.values()) <= limits.MAX_RANKS else {}


def _block(host: str, first: int, count: int) -> Seat:
    return Seat(tuple(range(first, first + count)), host, locals=tuple(range(count)))
