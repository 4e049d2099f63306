"""Options of a launcher of the torchrun family: nodes, node rank, rendezvous.

From its command line, and from the environment, which torchrun reads too (`PET_NNODES`).
Sources: torch 2.13 distributed/run.py, Accelerate 1.x commands/launch.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hangdoc.evidence import limits
from hangdoc.evidence.limits import MAX_RANKS_PER_HOST

_TORCHRUN = re.compile(r"(?:^|/)torchrun$|torch[./]distributed[./](?:run|launch)(?:\.py)?$")
_ACCELERATE = re.compile(r"accelerate(?:-launch|[./]commands[./](?:launch|accelerate_cli)(?:\.py)?)?$")
_SWITCHES = frozenset(  # options without a value
    ("m", "module", "no-python", "standalone", "run-path", "use-env", "virtual-local-rank", "multi-gpu", "cpu", "debug")
)
_NODE_PORT, _C10D_PORT = 29500, 29400  # default rendezvous ports: static, c10d
STATIC = "static"
TIMEOUT_MOST_S = 10**9


@dataclass(frozen=True, slots=True)
class Launch:
    """Rendezvous options of a launcher; None: not given, or invalid."""

    fewest: int | None = None  # nodes: the job starts with at least so many
    most: int | None = None  # nodes
    node: int | None = None  # node rank; None: assigned by the rendezvous
    per_node: int | None = None  # ranks
    backend: str = STATIC  # static | c10d | etcd | ...
    endpoint: str | None = None  # host:port of the rendezvous
    run_id: str = "none"
    timeout_s: float | None = None  # of the rendezvous
    alone: bool = False  # a single-node job: no rendezvous with other nodes

    @property
    def nodes(self) -> str | None:
        """Number of nodes as in `--nnodes`: `3`, `2:4`."""
        if self.fewest is None or self.most is None:
            return None
        return str(self.most) if self.fewest == self.most else f"{self.fewest}:{self.most}"

    @property
    def ranks(self) -> range | None:
        """Its ranks, if every node starts the same number."""
        if self.node is None or self.per_node is None:
            return None
        return range(self.node * self.per_node, (self.node + 1) * self.per_node)

    @property
    def world_size(self) -> int | None:
        """World size of the job, if the number of nodes is fixed and every node starts the same number of ranks."""
        fixed = self.fewest is not None and self.fewest == self.most
        return limits.valid_world_size(self.most * self.per_node) if fixed and self.most and self.per_node else None


def launch_of(command: Sequence[str], environ: Mapping[str, str]) -> Launch | None:
    """Options of the launcher with this command line; None: not a launcher of this family."""
    for at, word in enumerate(command[:4]):  # after an interpreter and its options
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
    """Options before the script; names without leading dashes, underscores as dashes."""
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


def _torchrun(options: Mapping[str, str]) -> Launch:
    fewest, most = _nodes(options.get("nnodes", "1"))
    backend = options.get("rdzv-backend", STATIC)
    endpoint = options.get("rdzv-endpoint", "")
    if backend == STATIC and not endpoint:
        endpoint = f"{options.get('master-addr', '127.0.0.1')}:{options.get('master-port', _NODE_PORT)}"
    given = bool(endpoint)
    conf = dict(pair.partition("=")[::2] for pair in options.get("rdzv-conf", "").split(",") if "=" in pair)
    return Launch(
        fewest,
        most,
        limits.parse_count(options.get("node-rank", "0" if backend == STATIC else conf.get("rank", ""))),
        limits.parse_count(options.get("nproc-per-node", "1"), MAX_RANKS_PER_HOST),
        backend,
        _with_port(endpoint or "localhost", _C10D_PORT),
        options.get("rdzv-id", "none"),
        limits.parse_count(
            conf.get(*(("timeout", "900") if backend == STATIC else ("join_timeout", "600"))), TIMEOUT_MOST_S
        ),
        alone="standalone" in options or (most == 1 and (backend == STATIC or not given)),
    )


def _accelerate(options: Mapping[str, str]) -> Launch:
    machines, processes = (
        limits.parse_count(options.get("num-machines", "1")),
        limits.parse_count(options.get("num-processes", "")),
    )
    backend = options.get("rdzv-backend", STATIC)
    address, port = options.get("main-process-ip"), options.get("main-process-port", _NODE_PORT)
    return Launch(
        machines,
        machines,
        limits.parse_count(options.get("machine-rank", "")) if backend == STATIC else None,
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
