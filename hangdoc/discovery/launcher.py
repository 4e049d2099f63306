"""What a launcher of the torchrun family was told: how many nodes, which of them it is, where they meet.

Read from its command line, and from the environment, where torchrun takes its options from too (`PET_NNODES`).
Sources: torch 2.13 distributed/run.py, Accelerate 1.x commands/launch.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hangdoc.evidence import limits
from hangdoc.evidence.limits import HOST_MOST

_TORCHRUN = re.compile(r"(?:^|/)torchrun$|torch[./]distributed[./](?:run|launch)(?:\.py)?$")
_ACCELERATE = re.compile(r"accelerate(?:-launch|[./]commands[./](?:launch|accelerate_cli)(?:\.py)?)?$")
_SWITCHES = frozenset(  # options that no value follows
    ("m", "module", "no-python", "standalone", "run-path", "use-env", "virtual-local-rank", "multi-gpu", "cpu", "debug")
)
_NODE_PORT, _C10D_PORT = 29500, 29400  # where nodes meet unless told otherwise: static rendezvous, c10d
STATIC = "static"
TIMEOUT_MOST_S = 10**9


@dataclass(frozen=True, slots=True)
class Launch:
    """The options by which the nodes of a job find one another; None: not said, or not readable."""

    fewest: int | None = None  # nodes that the job starts with at least
    most: int | None = None
    node: int | None = None  # which of them this is; None where the rendezvous gives the numbers
    per_node: int | None = None  # ranks it starts
    backend: str = STATIC  # static | c10d | etcd | ...
    endpoint: str | None = None  # host:port where the nodes meet
    run_id: str = "none"
    timeout_s: float | None = None  # how long it waits for the others
    alone: bool = False  # one node that waits for nobody

    @property
    def nodes(self) -> str | None:
        """How many are to take part, as it was told: `3`, `2:4`."""
        if self.fewest is None or self.most is None:
            return None
        return str(self.most) if self.fewest == self.most else f"{self.fewest}:{self.most}"

    @property
    def ranks(self) -> range | None:
        """The ranks that it starts, where every node starts as many."""
        if self.node is None or self.per_node is None:
            return None
        return range(self.node * self.per_node, (self.node + 1) * self.per_node)

    @property
    def world_size(self) -> int | None:
        """Of the job, where the number of nodes is fixed and every node starts as many ranks."""
        fixed = self.fewest is not None and self.fewest == self.most
        return limits.valid_world_size(self.most * self.per_node) if fixed and self.most and self.per_node else None


def launch_of(command: Sequence[str], environ: Mapping[str, str]) -> Launch | None:
    """What the launcher with this command line was told; None where it is none of that family."""
    for at, word in enumerate(command[:4]):  # behind an interpreter and its own options
        if _TORCHRUN.search(word):
            inherited = {
                name[4:].lower().replace("_", "-"): v for name, v in environ.items() if name.startswith("PET_")
            }
            return _torchrun({**inherited, **dict(_options(command[at + 1 :]))})
        if _ACCELERATE.search(word):
            rest = command[at + 1 :]
            return _accelerate(dict(_options(rest[1:] if "launch" in rest[:1] else rest)))
    return None


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options before the script, names without dashes in front and with dashes inside."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            return
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if not equals and name not in _SWITCHES:
            value = next(rest, "")
        yield name, value
        if name in ("m", "module"):
            return


def _torchrun(told: Mapping[str, str]) -> Launch:
    fewest, most = _nodes(told.get("nnodes", "1"))
    backend = told.get("rdzv-backend", STATIC)
    endpoint = told.get("rdzv-endpoint", "")
    if backend == STATIC and not endpoint:
        endpoint = f"{told.get('master-addr', '127.0.0.1')}:{told.get('master-port', _NODE_PORT)}"
    given = bool(endpoint)
    conf = dict(pair.partition("=")[::2] for pair in told.get("rdzv-conf", "").split(",") if "=" in pair)
    return Launch(
        fewest,
        most,
        limits.parse_count(told.get("node-rank", "0" if backend == STATIC else conf.get("rank", ""))),
        limits.parse_count(told.get("nproc-per-node", "1"), HOST_MOST),
        backend,
        _with_port(endpoint or "localhost", _C10D_PORT),
        told.get("rdzv-id", "none"),
        limits.parse_count(
            conf.get(*(("timeout", "900") if backend == STATIC else ("join_timeout", "600"))), TIMEOUT_MOST_S
        ),
        alone="standalone" in told or (most == 1 and (backend == STATIC or not given)),
    )


def _accelerate(told: Mapping[str, str]) -> Launch:
    machines, processes = (
        limits.parse_count(told.get("num-machines", "1")),
        limits.parse_count(told.get("num-processes", "")),
    )
    backend = told.get("rdzv-backend", STATIC)
    address, port = told.get("main-process-ip"), told.get("main-process-port", _NODE_PORT)
    return Launch(
        machines,
        machines,
        limits.parse_count(told.get("machine-rank", "")) if backend == STATIC else None,
        processes // machines if processes and machines else None,
        backend,
        f"{address}:{port}" if address else None,
        timeout_s=900,
        alone=machines == 1,
    )


def _nodes(text: str) -> tuple[int | None, int | None]:
    """`3` or `2:4`."""
    low, _, high = text.partition(":")
    return limits.parse_count(low), limits.parse_count(high or low)


def _with_port(endpoint: str, port: int) -> str:
    host, _, number = endpoint.rpartition(":")
    return endpoint if host and number.isdecimal() else f"{endpoint}:{port}"
