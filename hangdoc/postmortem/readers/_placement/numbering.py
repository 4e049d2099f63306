"""What a text states about the numbering of ranks: that a GPU, or a pod, has the number of its rank.

People state it in passing: `rank i on GPU i`, `one rank per device in order`, `RANK = pod ordinal`. A statement about
GPUs, or about local ranks, holds for one host only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_LINE = 400  # characters of prose
_GPU = r"(?:cuda[ _-]?devices?|gpus?|devices?|cards?|accelerators?|gcds?|npus?|xpus?|hpus?)"
_POD = r"(?:(?:stateful ?set )?pods?|workers?|replicas?|containers?|(?:pod )?ordinals?)"
_NUMBER = r"(?:[ _-]?(?:ids?|index|indices|idx|numbers?|no\.?|nr\.?|ordinals?|names?))"
_SAME = r"(?:==?|is|are|equals?|matches|match|follows?|corresponds? to|maps?(?: 1[:-]1)? to|same as|->|\u2192)"
_ORDER = r"(?:,|\()? ?(?:ranks? |all |assigned |numbered |placed |mapped ){0,2}in (?:\w{1,12} )?order\b"
_THINGS = re.compile(
    r"gpu|cuda|device|card|accelerator|gcd|[nxh]pu|pod|worker|replica|container|ordinal|ind(?:ex|ices)"
)
_LOCAL = re.compile(r"(?<![a-z])(?:local|node)[ _-]?(?:rank|id)", re.IGNORECASE)
_PLACES = ("node", "host", "box", "machine", "server", "standalone", "system", "workstation")
_MODULO = re.compile(r" ?(?:%|mod) ?\w")  # `gpu = rank % 8`
_ONE_HOST = re.compile(
    r"\b(?:single|one|1|same)[ -](?:\d{1,2} ?x ?\w{2,10}[ -](?:[A-Za-z]\w{1,7}[ -])?)?"
    r"(?:node|box|host|machine|server|system)\b|\bworkstation\b|--standalone\b|\bnnodes[= ]1\b",
    re.IGNORECASE,
)
_SEVERAL_HOSTS = re.compile(
    r"\b(?:[2-9]|[1-9]\d{1,4}|two|three|four|six|eight|both|several|multiple|all)[ -]?"
    r"(?:x )?(?:nodes|hosts|boxes|machines|servers)\b|\bmulti-?(?:node|host)\b"
    r"|\bnnodes[= ](?:[2-9]|[1-9]\d)|\b(?:[2-9]|[1-9]\d{1,4}) ?x ?(?:8\b|[2-9] ?gpus?\b)"
    r"|\b(?:node|machine)_rank\W{1,3}[1-9]|\b(?:second|2nd|third|3rd|last|other) (?:node|host|box|machine|server)\b",
    re.IGNORECASE,
)
_NOT = re.compile(r"\b(?:not|no longer|isn't|aren't|don't|doesn't|assum\w{1,4}|if|whether|should)\b", re.IGNORECASE)
_EXCEPT = re.compile(r".{0,30}\b(?:except|unless|but not)\b|[^.;,!)]{0,30}\?", re.IGNORECASE)


def _statements(thing: str) -> re.Pattern[str]:
    """Sentences that give a thing the number of its rank."""
    rank = rf"(?:ranks?|RANK){_NUMBER}?"
    either = rf"{thing}{_NUMBER}?"
    return re.compile(
        rf"(?<![a-z]){rank} ?{_SAME} ?(?:(?:the|its|their|to) ){{0,2}}(?:pod |local |cuda )?{either}\b(?! ?[:=#]?\d)"
        rf"|\b{either} ?{_SAME} ?(?:(?:the|its|their|to) ){{0,2}}(?:global |local[ _-]?)?{rank}\b(?! ?[:=#]?\d)"
        rf"|\b{thing} (?:of|to|from|by|=|is) (?:(?:its|their|the|own) ){{0,2}}(?:slurm_)?local[ _-]?(?:rank|id)\b"
        rf"|\blocal[ _-]?rank (?:picks|selects|chooses|sets) (?:the )?{thing}\b"
        rf"|\blocal[ _-]?id ?{_SAME} ?(?:the )?{either}\b(?! ?[:=#]?\d)"
        rf"|(?<![a-z])(?:ranks?|process|worker) (?P<one>[a-z])\b.{{0,24}}?\b{thing}[ :_-]{{0,2}}(?P=one)\b"
        rf"|\b{thing}[ :_-]{{0,2}}(?P<other>[a-z])\b.{{0,24}}?\b(?:ranks?|process|worker) (?P=other)\b"
        rf"|\b(?:one|1|a(?: single)?) (?:rank|process|proc|task|worker) (?:per|an?|for each|on each|for every|on every)"
        rf" {thing}{_ORDER}"
        rf"|\branks?\b.{{0,24}}\bin (?:the )?(?:same )?"
        rf"(?:order of (?:the )?{thing}|{thing}[ -](?:index |number )?order)\b"
        rf"|\b{thing}s? (?:are )?in rank order\b"
        rf"|\brank ?/ ?(?:local )?(?:cuda )?{thing}(?: ?\||$)"  # the head of a column
        rf"|\branks?\b.{{0,20}}\b(?:1[:-]1|one[- ]to[- ]one)\b.{{0,12}}\b{thing}\b",
        re.IGNORECASE,
    )


_OF_GPU = _statements(rf"(?:cuda|{_GPU})")
_OF_CODE = re.compile(  # `torch.cuda.set_device(local_rank)`, `cuda:{LOCAL_RANK}`, `rank = 8 * node_rank + gpu`
    r"set_device\([^)\n]{0,60}?(?:local_)?rank|\b(?:cuda|hip|xpu):[{$]{0,2}(?:local_)?rank\b"
    r"|\brank ?= ?\d{1,4} ?\* ?node[ _]?(?:rank|idx|index|id)? ?\+ ?(?:gpu|device|local)",
    re.IGNORECASE,
)
# `nothing sets CUDA_VISIBLE_DEVICES`: the GPUs of a host are used in their order.
_UNRESTRICTED = re.compile(
    r"\b(?:nothing|nobody|no one|none) (?:sets|set|changes|uses|has) (?:CUDA|HIP|ROCR)_VISIBLE_DEVICES\b"
    r"|\b(?:CUDA|HIP|ROCR)_VISIBLE_DEVICES (?:is |are )?(?:unset|not set|empty|the default|nowhere)\b"
    r"|\b(?:no|without|not set|don't set|unset) (?:CUDA|HIP|ROCR)_VISIBLE_DEVICES\b",
    re.IGNORECASE,
)
_OF_POD = _statements(_POD)
_OF_POD_CODE = re.compile(  # the number of a pod in its environment, as Kubernetes, Volcano and LeaderWorkerSet name it
    r"\bRANK\b[\"']?(?:, ?value)? ?[:=] ?[\"']?\$[({]{0,2}(?:\w{0,20}_)?(?:COMPLETION_INDEX|POD_INDEX|POD_ORDINAL"
    r"|ORDINAL|TASK_INDEX|WORKER_INDEX|REPLICA_INDEX)\b|\bRANK ?= ?\$\{(?:HOSTNAME|POD_NAME)##\*-\}"
)
_OF_ANY = _statements(r"(?:index|indices)")


@dataclass(slots=True)
class RankNumbering:
    """Takes the lines of a text in order."""

    _gpus: bool = False
    _local: bool = False
    _pods: bool = False
    _one_host: bool = False
    _several_hosts: bool = False

    def feed(self, text: str) -> None:
        if len(text) > MAX_LINE:
            return
        lowered = text.lower()
        self._gpus = self._gpus or ("visible_devices" in lowered and _UNRESTRICTED.search(text) is not None)
        if any(word in lowered for word in _PLACES):
            self._one_host = self._one_host or _ONE_HOST.search(text) is not None
            self._several_hosts = self._several_hosts or _SEVERAL_HOSTS.search(text) is not None
        if not any(word in lowered for word in ("rank", "process", "worker", "task", "localid")) or not _THINGS.search(
            lowered
        ):
            return
        for pattern in (_OF_POD_CODE, _OF_GPU, _OF_POD, _OF_ANY, _OF_CODE):
            found = pattern.search(text)
            if not found or _NOT.search(text[max(found.start() - 12, 0) : found.end()]):
                continue
            if _EXCEPT.match(text, found.end()):
                continue
            local = _LOCAL.search(text[max(found.start() - 8, 0) : found.end()]) or _MODULO.match(text, found.end())
            of_node = pattern is _OF_CODE and "node" in found[0].lower()  # `rank = 8 * node + gpu`
            self._local = self._local or local is not None or of_node
            self._gpus = self._gpus or pattern not in (_OF_POD, _OF_POD_CODE)
            self._pods = self._pods or pattern not in (_OF_GPU, _OF_CODE)
            return

    @property
    def counts_gpus(self) -> bool:
        """True if the GPUs of a host have the order of its ranks."""
        return self._gpus

    @property
    def gpu_is_rank(self) -> bool:
        """True if the number of a GPU is that of its rank."""
        return self._gpus and not self._several_hosts and (self._one_host or not self._local)

    @property
    def several_hosts(self) -> bool:
        """True if the text speaks of several hosts, and not of one."""
        return self._several_hosts and not self._one_host

    @property
    def one_host(self) -> bool:
        """True if the text says that the job runs on one host."""
        return self._one_host and not self._several_hosts

    @property
    def ordinal_is_rank(self) -> bool:
        """True if the number at the end of the name of a pod is that of its rank."""
        return self._pods
