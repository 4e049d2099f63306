"""The ranks, hosts, PIDs, GPUs, local ranks, node ranks and PCI addresses that a line names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hangdoc.postmortem.readers._host_names import NAME, is_host_name, listed_numbers

MAX_NUMBERS = 4096  # in one list

RANK, LOCAL, GPU, PID, NODE, BUS, HOST, BARE = "rank", "local", "gpu", "pid", "node", "pci", "host", "bare"

_SPAN = r"\d{1,7}(?:\s?(?:-|\u2013|to|\.{2,3}|through)\s?\d{1,6})?"
_LIST = rf"{_SPAN}(?:\s?(?:,(?: and)?|and|&)\s?{_SPAN}){{0,64}}"
_FEW = rf"{_SPAN}(?:,{_SPAN}){{0,64}}"  # behind a word in the singular: `local 0, 5 -> w1` are two statements
_NUMBERED = {  # the words in the singular, and in the plural
    NODE: (
        r"(?:node|machine|group)[ _-]?rank|slurm_nodeid|node[ _-]?(?:id|index|idx)|node(?=[ #:=]{1,2}\d)",
        r"nodes",
    ),
    LOCAL: (r"local[ _-]?rank|slurm_localid|local(?=[ #:=]{1,2}\d)", r"local[ _-]?ranks"),
    RANK: (
        r"(?:global |world |global_|world_)?rank|slurm_procid|procid|(?:pmi|pmix|ompi_comm_world)_rank|process_index",
        r"(?:global )?ranks",
    ),
    PID: (r"(?:--)?pid(?!\D{0,4}[01]\b)|process(?= \d{3})|-p(?= \d{3})", r"pids"),
    GPU: (r"(?:gpu|cuda|device|cudadev)(?!\d\d)", r"gpus|devices"),
}
_IS = r"[\s:=#\[(\"'-]{0,4}"
_OF_ALL = r"(?:\s?/\s?\d{1,6}(?!\d)|\s(?:out )?of \d{1,6}(?!\d)|\s{1,4}group\s{1,4}\d{1,3})?"  # `rank 3 of 8`
_TOKEN = re.compile(
    "|".join(
        rf"(?<![A-Za-z0-9_$])(?:{words}){_IS}(?P<{kind}{of}>{numbers})(?![A-Za-z_]|\.\d|\d| ?\*){_OF_ALL}"
        for kind, (one, several) in _NUMBERED.items()
        for of, words, numbers in (("s", several, _LIST), ("", one, _FEW))
    )
    + rf"|(?<![\w.:])(?P<{BUS}>(?:[0-9a-f]{{4,8}}:)?[0-9a-f]{{2}}:[0-9a-f]{{2}}\.[0-7])(?![\w.:])"
    + rf"|(?<![\w./:$-])(?P<{BARE}>{_LIST})(?![\w]|[.:]\d|\s?(?:%|ms\b|MHz\b|GiB\b|GB\b|W\b))"
    + rf"|(?<![\w./$-])(?=[\w.]{{0,60}}[\d-]|(?:node|host|box)[a-z])(?P<{HOST}>{NAME})(?![\w/]|\(\))",
    re.IGNORECASE,
)
_NO_HOST = re.compile(  # names with digits of what ranks are busy with, files, and products
    r"(?:layer|block|stream|conv|module|bucket|chunk|queue|channel|ring|tree|group|pg|seq|comm|param|expert|head|batch"
    r"|mb|micro|op|kernel|bn|fc|dense|linear|iter|it|loop|phase|level|barrier|all_?\w+|c10d|zero|adam\w*|gloo|nccl"
    r"|rccl)[-_.]?\w{0,3}\d*"
    r"|.*[_/].*|(?=.*[A-Za-z]).*\.(?:\d+|[\w-]*-[\w-]*)(?:\..*)?"
    r"|a(?:2|10|16|30|40|100|800)|h(?:20|100|200|800)|b(?:100|200|300)|l(?:4|20|40)|t4|v100|p(?:4|40|100)"
    r"|k(?:40|80)|[ve]\d",
    re.IGNORECASE,
)
_HOST_FORM = re.compile(  # hosts that may be something else in other texts
    r"[a-z]\d{1,4}|(?:node|machine|host|worker|trainer|pod|gpu[-_]?[a-z]{1,8})-?\d{1,5}|gpu[-_]?\d{2,5}"
    r"|[a-z]{2,20}-[a-z]|(?:node|host|worker|machine|server|box)[-_]?[a-z]",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    start: int
    end: int
    text: str = ""  # of a host or a PCI address
    numbers: tuple[int, ...] = ()


def tokens_in(text: str) -> Iterator[Token]:
    for match in _TOKEN.finditer(text):
        group = match.lastgroup or ""
        kind, value = group.rstrip("s"), match[group]
        if kind == HOST:
            value = value.rstrip(".-")
            if may_be_host(value):
                yield Token(kind, match.start(), match.start() + len(value), value)
        elif kind == BUS:
            yield Token(kind, match.start(), match.end(), value)
        elif numbers := listed_numbers(re.sub(r"\.\.\.|through", "-", value), MAX_NUMBERS):
            yield Token(kind, match.start(), match.end(), numbers=numbers)


def may_be_host(name: str) -> bool:
    return not _NO_HOST.fullmatch(name) and (is_host_name(name) or _HOST_FORM.fullmatch(name) is not None)
