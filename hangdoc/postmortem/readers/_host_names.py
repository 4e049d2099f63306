"""Names of hosts in pasted text: which words are some, sets of them, and the shell prompts that show them."""

from __future__ import annotations

import re
from dataclasses import dataclass

NAME = r"[A-Za-z0-9][\w.\-]{0,252}"  # of a host or a pod
LOG_OF_RANK = r"(?:log|out|err|std(?:out|err))[._-]\d{1,6}"  # a file, as of `srun --output log.%t`
MAX_LINES = 20_000  # of a text whose hosts are looked for; longer ones are logs, which have prefixes

_SET_PART = re.compile(r"[\w.-]{1,100}(?:\[[\d,-]{1,200}\][\w.-]{0,100})?")  # of `nd[01-04,6],gx2`
_FOLDED = re.compile(r"([\w.-]{1,100})\[([\d,-]{1,200})\]([\w.-]{0,100})")
_NUMBERS_IN_ORDER = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen",
)  # fmt: skip
_NUMBER_WORDS = {**{word: number for number, word in enumerate(_NUMBERS_IN_ORDER)}, "thirty-one": 31, "sixty-three": 63}
_SPAN = re.compile(r"(\d{1,6})(?:\s{0,2}(?:-|\u2013|to|through|thru|\.\.)\s{0,2}(\d{1,6}))?")
_RULER = re.compile(r"[-=*#]{4,}\s*")
_ALONE = re.compile(rf"({NAME})\s*")
# A shell's prompt: `user@host:~/dir$`, `[user@host dir]#`, `host:~ $`, `host#`; and the command behind it.
_PROMPT = re.compile(
    rf"\s{{0,4}}(?:\([\w. -]{{1,40}}\) ?)?(?:\[?[A-Za-z_][\w.-]{{0,31}}@(?P<host>{NAME})"
    rf"(?:[: ][^\n$#%>\]]{{0,80}})?\]? ?[$#%>]"
    rf"|\[?(?P<bare>{NAME})(?:[: ][~/][\w./~-]{{0,80}})?\]? ?[$#%]|[$%](?=\s))(?:\s+(?P<command>\S.{{0,2000}}?))?\s*"
)
_ELSEWHERE = re.compile(
    r"(?:sudo )?(?:pdsh|clush|pssh|parallel-ssh|srun|mpirun|mpiexec|ansible|kubectl|docker|podman|salt)\b"
)
_SSH = re.compile(rf"(?:sudo )?ssh (?:-\w+ (?:[\w=]{{1,40}} )?){{0,4}}(?:[\w.-]{{1,32}}@)?({NAME})\b")
_ON_ONE = re.compile(  # a command that runs in one pod, or on one host
    rf"(?:sudo )?(?:kubectl (?:-n \S{{1,60}} )?exec (?:-\w{{1,2}} |-[nc] \S{{1,60}} ){{0,4}}(?:pod/)?({NAME}) "
    rf"(?:-c \S{{1,60}} )?--|(?:srun|pdsh|clush) (?:-[\w-]{{1,20}}(?:[ =][\w$][\w${{}}.-]{{0,23}})? ){{0,5}}"
    rf"(?:-w|--nodelist)[ =]?({NAME})) "
)
_NO_HOST = re.compile(  # names with digits that are no hosts; `gpu-c14` is one
    r"(?!gpu-[a-z]\d\d?$)(?:rank|gpu|cuda|device|dev|worker|pid|proc|step|epoch|iter|iteration|line|task|job|default|local|mlx\d|mlx"
    r"|ib|bond"
    r"|eth|en|nvme|sd|hfi|roce|card|hip|npu|ce|xid|sxid|v|x|py|python|cu|thread|tid|attempt|try|run|exit|code|sh"
    r"|bash|zsh"
    r"|stage|pp|tp|dp|ep|part|shard|replica|trial|day|page|version|num|no|pcie|mp|lwp|nvidia|nvswitch|ttyS|tty|loop|md"
    r"|dm|sda|fd|arg|case|test|cpu|core|socket|numa|bus|slot|port|lane|link)[-_ ]?[a-z]?\d*(?<!gpu\d\d)(?<!gpu\d\d\d)"
    rf"|(?:sh|bash|zsh)-\d.*|{LOG_OF_RANK}|[\d.:-]+|\d[\da-fA-F]*[.:].*|\d+[a-zA-Z]{0, 3}|[EWIF]\d{4}"
    r"|.*\.(?:py|sh|log|txt|yaml|yml|json|out|err|c|cc|cpp|cu|so[\d.]*|h5|tar|zip|safetensors|pt|bin)",
    re.IGNORECASE,
)
_PRODUCT = re.compile(  # GPUs, models, systems and versions of software
    r"(?:[ahvbltpk]|gh|gb|mi)\d{2,3}s?x?(?:[-_x](?:\d+[a-z]*|sxm\d?|pcie|nvl\d*))?|(?:rtx|gtx|tesla"
    r"|quadro)[-_]?[ahvb]?\d{2,4}(?:ti)?"
    r"|(?:ubuntu|centos|debian|rhel|rocky|cuda|cudnn|rocm|torch|pytorch|nccl|driver|kernel|linux|llama|qwen|gpt"
    r"|mistral|mixtral|gemma|deepseek|resnet|imagenet|slurm|k8s|fp|bf|int|float)[-_]?v?\d.*",
    re.IGNORECASE,
)
_LETTERED = re.compile(r"[a-z][a-z0-9]{1,14}-[a-z]")  # `trn-b`
# `mule$ sudo ethtool eth0`: a word alone is a host only in front of a command that shows something of a host.
_WORD = re.compile(r"(?!(?:root|user|admin|ubuntu|me|prompt|home|sudo|su|base|venv|env)\b)[a-z]{2,16}")
_OF_HOST = re.compile(
    r"(?:sudo )?(?:ethtool|iperf3?|nvidia-smi|rocm-smi|dmesg|journalctl|ip|ss|ping|ibstat|ibstatus|rdma|mlxlink|lspci"
    r"|lscpu|numactl|turbostat|sensors|df|mount|iostat|free|uptime|top|ps|py-spy|pystack|gdb|hostname|netstat|nstat)\b"
)
_RANK_NAME = re.compile(r"(?:global[-_]?)?rank[-_]?(\d{1,6})", re.IGNORECASE)
_ADDRESS = re.compile(r"(?:\d{1,3}\.){3}\d{1,3}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A line with a shell's prompt."""

    host: str | None  # on which the command ran; None: not stated, or on several
    states_host: bool  # it shows where the command ran, or that it ran elsewhere
    name: str | None  # as printed: a host, or `rank1`
    command: str


def prompt_of(text: str) -> Prompt | None:
    """The shell's prompt at the beginning of a line, and where its command ran."""
    if not text or len(text) > 2400 or not any(mark in text[:160] for mark in "$#%>"):
        return None
    found = _PROMPT.fullmatch(text)
    if not found:
        return None
    name, command = found["host"] or found["bare"], found["command"] or ""
    if found["bare"] and not _may_be_prompt(found["bare"], text[found.end("bare") :], command):
        return None
    if ssh := _SSH.match(command):
        return Prompt(ssh[1], True, ssh[1], command)
    if one := _ON_ONE.match(command):
        return Prompt(one[1] or one[2], True, one[1] or one[2], command)
    if _ELSEWHERE.match(command):
        return Prompt(None, True, None, command)
    host = name if name and as_rank(name) is None and name != "localhost" else None
    return Prompt(host, name is not None, name, command)


def _may_be_prompt(name: str, behind: str, command: str) -> bool:
    """True if a word in front of `$`, `%` or `#` is a host or a rank: by itself, or by what is behind it."""
    if behind.startswith(":~") or as_rank(name) is not None or is_host_name(name):  # `trainbox:~$`
        return True
    shell = bool(command) and behind.lstrip("]")[:1] in ("$", "#")  # `[trn-b]$ iostat`
    if not shell or _NO_HOST.fullmatch(name):
        return False
    return is_lettered(name) or (_WORD.fullmatch(name) is not None and _OF_HOST.match(command) is not None)


def as_rank(name: str) -> int | None:
    """The rank that a name such as `rank1` or `rank-1` stands for."""
    found = _RANK_NAME.fullmatch(name)
    return int(found[1]) if found else None


def is_host_name(name: str) -> bool:
    """True if a word is more likely a host (`gn12`, `dgx-a`, `10.0.0.3`) than anything else with a digit or a dash."""
    if _ADDRESS.fullmatch(name):
        return True
    return bool(re.search(r"\d", name) and re.search(r"[A-Za-z]", name)) and not (
        _NO_HOST.fullmatch(name) or _PRODUCT.fullmatch(name)
    )


def is_lettered(name: str) -> bool:
    """True for `trn-b`: a host, too, where the text around it suggests one, as a prompt does."""
    return _LETTERED.fullmatch(name) is not None


def host_alone(text: str) -> str | None:
    """The host in a line that has nothing else."""
    name = text.strip()
    return name if _ALONE.fullmatch(name) and is_host_name(name) else None


def between_rulers(above: str, name: str, below: str) -> str | None:
    """The host in a header of clush and dshbak."""
    alone = _ALONE.fullmatch(name) if _RULER.fullmatch(below) and _RULER.fullmatch(above) else None
    return alone[1] if alone else None


def written_number(text: str) -> int | None:
    """The number in `7` or `seven`; None: it is none, or a word that hangdoc does not know."""
    return int(text) if text.isdecimal() else _NUMBER_WORDS.get(text.lower())


def listed_numbers(text: str, most: int) -> tuple[int, ...]:
    """The numbers in `0, 2-4 and 7`; empty if there are more than `most`, or a span runs backwards."""
    numbers: dict[int, None] = {}
    for span in _SPAN.finditer(text):
        first, last = int(span[1]), int(span[2] or span[1])
        if not first <= last < first + most:
            return ()
        numbers |= dict.fromkeys(range(first, last + 1))
        if len(numbers) > most:
            return ()
    return tuple(numbers)


def hosts_in_set(text: str, most: int) -> tuple[str, ...]:
    """The hosts in `nd[01-04,6],gx2`; empty: there are more than `most`, or they are no names."""
    found: list[str] = []
    for part in _SET_PART.findall(text):
        folded = _FOLDED.fullmatch(part)
        if folded is None:
            found.append(part)
            continue
        width = len(re.split("[,-]", folded[2])[0])
        found += [f"{folded[1]}{one:0{width}d}{folded[3]}" for one in listed_numbers(folded[2], most)]
    return tuple(found) if len(found) <= most and all(re.fullmatch(NAME, one) for one in found) else ()
