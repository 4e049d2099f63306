"""Whose lines these are: the rank, process or host in the headings, prompts and labels that people and tools write.

A dump belongs to the process that the lines around it name (`OwnerHints`). A line of the kernel or of a driver is about
its host, and often does not name it. The prompt of the shell in which it was printed does (`root@gn12:~# dmesg`), or a
heading (`### gn12`, `On gn12:`; `HostContext`), or a label that a loop put before it (`host_in_front`).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from msgspec.structs import replace

from hangdoc.evidence.pieces import ProcessRef
from hangdoc.postmortem.readers._elided import elision

NAME = r"[A-Za-z0-9][\w.\-]{0,252}"  # of a host or a pod
MAX_COMPANIONS = 4096  # ranks under one heading
MAX_ABOVE = 8  # lines between a heading and the command whose output it announces
MAX_PROSE = 1_000  # characters of a line of prose
MAX_LINES = 20_000  # of a text whose hosts are looked for; longer ones are logs, which have prefixes
LOCAL_PIDS = -(10**5)  # stands for the PID of GPU 0 of a host, below it those of its other GPUs

_RANK = re.compile(r"(?<![A-Za-z_])(?:(?:global|world)[ _-]?)?rank[\s:=#_-]{0,4}(\d{1,6})(?!\d)", re.IGNORECASE)
_RANKS = re.compile(
    r"(?<![A-Za-z_])ranks?[\s:=#_\[(-]{0,4}"
    r"(\d{1,6}(?:\s{0,2}(?:,(?: and)?|and|&|-|\u2013|to|through|thru|\.\.)\s{0,2}(?:rank )?\d{1,6}){1,64})(?![\w.])",
    re.IGNORECASE,
)
_SET_PART = re.compile(r"[\w.-]{1,100}(?:\[[\d,-]{1,200}\][\w.-]{0,100})?")  # of `nd[01-04,6],gx2`
_FOLDED = re.compile(r"([\w.-]{1,100})\[([\d,-]{1,200})\]([\w.-]{0,100})")
_SPAN = re.compile(r"(\d{1,6})(?:\s{0,2}(?:-|\u2013|to|through|thru|\.\.)\s{0,2}(\d{1,6}))?")
_OTHER_RANK = re.compile(
    r"(?:local|node|group)[ _-]?rank[\s:=#_-]{0,4}\d{1,6}|world[ _-]?size[\s:=]{0,3}\d{1,6}|(?<=\d)\s?(?:/"
    r"|of)\s?\d{1,6}\b",
    re.IGNORECASE,
)
_LOCAL = re.compile(
    r"(?<![A-Za-z_])(?:gpu|cuda|device|local(?:[ _-]?(?:rank|proc(?:ess)?|id))?|worker|proc)"
    r"[\s:=#_-]{1,3}(\d{1,4})(?![\d.]|:\d)",
    re.IGNORECASE,
)
_PID = re.compile(r"(?<![A-Za-z_])(?:--)?pid[\s:=#_]{0,4}(\d{1,9})(?!\d)", re.IGNORECASE)
_PIDS = re.compile(r"(?<![A-Za-z_])pids?[\s:=#_]{0,4}\d{1,9}(?:(?:,(?: and)?|and|&) ?\d{1,9}){1,64}", re.IGNORECASE)
# One process in a sentence: `rank 2 (pid 88213)`, `rank 1 is different. gdb on its pid 40417`
_RANK_OF_PID = re.compile(
    r"(?<![A-Za-z_])rank[ _#=:-]{0,2}(?P<rank>\d{1,6})\b(?:(?!ranks?\b|\bpid)[^\n\d]){0,60}?"
    r"\bpid[ :=#]{0,3}(?P<pid>\d{1,9})\b",
    re.IGNORECASE,
)
# Behind the rank whose stack is shown: `rank 0 (2 and 3 are the same)`
_AND_THESE = re.compile(
    r"\((?:also |and |ranks? ){0,3}(\d{1,6}(?: ?(?:,(?: and)?|and|&|-|\u2013|to) ?\d{1,6}){0,64}) (?:is |are )?"
    r"(?:all )?(?:exactly )?(?:the )?(?:same|identical|alike|look the same|as well|too)\b[^()\n]{0,30}\)",
    re.IGNORECASE,
)
# Ray's label of an actor, in its dashboard and in front of its lines: `(RayTrainWorker pid=5102, ip=10.0.0.7)`
_ACTOR = re.compile(r"\((?:[A-Za-z_]\w{0,60} )?pid=(\d{1,9})(?:, ip=([\w.:-]{1,60}))?\)")
_COMMENT_OF_COMMAND = re.compile(r"\s#[^#\n]{0,40}$")
_HOST = re.compile(
    rf"(?<![A-Za-z_])(?:host(?:name)?|node|pod)(?:\s*[:=]\s*|\s+)({NAME})|(?:\bon\s+|@\s*)({NAME})", re.IGNORECASE
)
_FILLER_WORDS = re.compile(
    r"\b(?:stacks?|stacktraces?|traces?|tracebacks?|backtraces?|bt|dumps?|of|for|from|on|the|py-spy|pystack|gdb"
    r"|process|worker"
    r"|gpu\s*\d{1,4}|begin|start|output|txt|log|out|err|global|main|thread|python|here|is|this|and|shows?|at"
    r"|both|all|are|std(?:out|err)|tail|end|last|lines?)\b",
    re.IGNORECASE,
)
_DECORATION = re.compile(r"[\s=\-#*>\[\]():.,;|~+/$<_]+")
_RULER = re.compile(r"[-=*#]{4,}\s*")
_TITLE = re.compile(rf"\s*[=\-#*]{{2,}}\s*({NAME})\s*[=\-#*]{{2,}}\s*|==> ({NAME}) <==\s*")
_DECORATED = re.compile(r"\s*(?:[=\-#*~+>]{2,}|#{1,6} )\s*\S.{0,200}")
_ALONE = re.compile(rf"({NAME})\s*")
_ENDING = re.compile(r"\.(?:txt|log|out|err|json|dump)$")
_LEAD = re.compile(  # a heading may be a sentence; then it begins with the process, and ends in a colon
    r"[\s\[(=\-#*~+>]{0,20}(?:\d{1,2}[.)] )?(?:(?:here(?:'s| is)|this is|and|on|for|from|the|stack(?:s|trace)?"
    r"|trace(?:back)?"
    r"|dump|py-spy|gdb|of|global|node \S{1,60}[, ]{1,2})[\s:-]{1,3}){0,5}(?:ranks?|gpu|worker|local[ _-]?rank|proc)\b",
    re.IGNORECASE,
)
# A list of ranks and PIDs in one line: `rank -> pid: 0=90117 1=90118`, `pids 4412 (rank 0), 4413 (rank 1)`.
_LISTED = re.compile(
    r"(?<![\d.:])(\d{1,9}) ?(?:[=:]|-+>|=>|\(rank|\(pid|is rank|is pid|RANK=) ?(\d{1,9})(?![\d.:])", re.IGNORECASE
)
# A line that a loop over PIDs printed: `71822 RANK=2`, `71822: rank 2`.
PID_FIRST = re.compile(
    r"\s{0,8}(\d{3,9})[\s:=,>-]{1,8}(?:[A-Z_]{1,40}=\S{1,40}\s{1,4}){0,8}"
    r"(?:RANK=|SLURM_PROCID=|(?:global )?rank[ =:]{0,2})(\d{1,6})(?!\d)(?:\s{1,4}[A-Z_]{1,40}=\S{1,60}){0,8}\s*"
)
_ENVIRON = re.compile(r"/proc/(?:(\d{1,9})|[^\s/]{1,40})/environ\b")
_OF_ENVIRON = re.compile(r"\s{0,8}(?:export )?RANK=(\d{1,6})\s*")
_PID_OPTION = re.compile(r"(?:^|\s)(?:-p|--pid)[ =]?(\d{1,9})(?=\s|$)")  # of py-spy, gdb, strace
_RANK_AND_PID = re.compile(r"\branks?\b.*\bpids?\b|\bpids?\b.*\branks?\b", re.IGNORECASE)
_SAME = re.compile(
    r"\b(?:(?:same (?:\w{1,12} )?as|identical to|just like|as on|like) (?:on )?rank[ _-]?|(?:same as|identical to) )"
    r"(\d{1,6})\b(?!\.\d)",
    re.IGNORECASE,
)
_NOTE = re.compile(  # behind ranks: `(all the same)`
    r"\s?[(\[](?=[^()\[\]\n]{0,50}\b(?:same|identical|alike|all|both|each|stuck|hung|hanging|waiting|fine)\b)"
    r"(?![^()\[\]\n]*\d)[^()\[\]\n]{1,60}[)\]](?=[\s:*_`-]*$)",
    re.IGNORECASE,
)
# The processes of a text and their ranks, in the same order: `pids are rank 0,1,2,3 in that order`, `in rank order`.
_IN_ORDER = re.compile(
    r"\branks?[\s:=]{1,3}(?P<ranks>\d{1,6}(?: ?(?:,(?: and)?|and|&|-|\u2013|to|\.\.) ?(?:rank )?\d{1,6}){1,64})[,;)]? ?"
    r"\(?(?:respectively\b|in (?:(?:exactly )?(?:that|this|the same|ascending) )?order\b(?! (?:to|that|of)\b))"
    r"|\b(?:in|by) (?:the order of )?(?:(?:their|the) )?ranks?\b(?=[ -]order\b|[.):]?\s*$)"
    r"|\b(?:in order of|(?:sorted|ordered) by) (?:(?:their|the|global) )?ranks?\b",
    re.IGNORECASE | re.MULTILINE,
)
_DEBUGGER = re.compile(
    r"\b(?:c?gdb|lldb|py-?spy|py-?stack|p-?stack|g-?stack|eu-stack|debugger|backtrace)\b", re.IGNORECASE
)
_SENTENCE = re.compile(r"[.;!?] ")
_CLAUSE = re.compile(r"[.;:] |\((?=ranks?\b)", re.IGNORECASE)
# `for h in n1 n2 n3; do echo $h; ...`: lines that are one of these names alone are headings.
_LOOP = re.compile(rf"\bfor \w{{1,20}} in ((?:{NAME} ){{0,64}}?{NAME}) ?; ?do\b")
_SPOKE = re.compile(r"\s{0,8}\[rank[ _:-]{0,2}(\d{1,6})\][ :]", re.IGNORECASE)  # a line of this rank's own output
# A shell's prompt: `user@host:~/dir$`, `[user@host dir]#`, `host:~ $`, `host#`; and the command behind it.
_PROMPT = re.compile(
    rf"\s{{0,4}}(?:\([\w. -]{{1,40}}\) ?)?(?:\[?[A-Za-z_][\w.-]{{0,31}}@(?P<host>{NAME})"
    rf"(?:[: ][^\n$#%>\]]{{0,80}})?\]? ?[$#%>]"
    rf"|\[?(?P<bare>{NAME})(?:[: ][~/][\w./~-]{{0,80}})?\]? ?[$#%]|[$%](?=\s))(?:\s+(?P<command>\S.{{0,2000}}?))?\s*"
)
_COMMENT = re.compile(r"(?<!\S)#[^#]{1,80}$")  # behind a command: `py-spy dump -p 811  # rank 5`
_ELSEWHERE = re.compile(
    r"(?:sudo )?(?:pdsh|clush|pssh|parallel-ssh|srun|mpirun|mpiexec|ansible|kubectl|docker|podman|salt)\b"
)
_SSH = re.compile(rf"(?:sudo )?ssh (?:-\w+ (?:[\w=]{{1,40}} )?){{0,4}}(?:[\w.-]{{1,32}}@)?({NAME})\b")
_ON_ONE = re.compile(  # a command that runs in one pod, or on one host
    rf"(?:sudo )?(?:kubectl (?:-n \S{{1,60}} )?exec (?:-\w{{1,2}} |-[nc] \S{{1,60}} ){{0,4}}(?:pod/)?({NAME}) "
    rf"(?:-c \S{{1,60}} )?--|(?:srun|pdsh|clush) (?:-[\w-]{{1,20}}(?:[ =]\w{{1,12}})? ){{0,5}}"
    rf"(?:-w|--nodelist)[ =]?({NAME})) "
)
_NO_HOST = re.compile(  # names with digits that are no hosts
    r"(?:rank|gpu|cuda|device|dev|worker|pid|proc|step|epoch|iter|iteration|line|task|job|default|local|mlx\d|mlx"
    r"|ib|bond"
    r"|eth|en|nvme|sd|hfi|roce|card|hip|npu|ce|xid|sxid|v|x|py|python|cu|thread|tid|attempt|try|run|exit|code|sh"
    r"|bash|zsh"
    r"|stage|pp|tp|dp|ep|part|shard|replica|trial|day|page|version|num|no|pcie|mp|lwp|nvidia|nvswitch|ttyS|tty|loop|md"
    r"|dm|sda|fd|arg|case|test|cpu|core|socket|numa|bus|slot|port|lane|link)[-_ ]?[a-z]?\d*(?<!gpu\d\d)(?<!gpu\d\d\d)"
    r"|(?:sh|bash|zsh)-\d.*|[\d.:-]+|\d[\da-fA-F]*[.:].*|\d+[a-zA-Z]{0,3}|[EWIF]\d{4}"
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
_RANK_NAME = re.compile(r"(?:global[-_]?)?rank[-_]?(\d{1,6})", re.IGNORECASE)
_ADDRESS = re.compile(r"(?:\d{1,3}\.){3}\d{1,3}")
_LAST_CLAUSE = re.compile(  # "the others are fine. rank 1 is different:"
    r"(?:^|[.;,!] |\b(?:but|only|while|and|on|of|here's|from) )(?:global )?ranks?[ -]?"
    r"(\d{1,6}(?: ?(?:,(?: and)?|and|&|-|\u2013|to) ?\d{1,6}){0,64})(?:'s)?"
    r"(?: [A-Za-z'-]{1,20}){0,5} ?:\s*$",
    re.IGNORECASE,
)
_LOGGED = re.compile(r"\d\d:\d\d:\d\d|\b(?:INFO|WARN|WARNING|ERROR|DEBUG|NCCL)\b|[=:]\s*-?\d{1,9}\.\d|\[[EWI]\d{4}")

# Kinds of messages about the host on which they were printed, whichever process reports them first.
OF_HOST = frozenset(
    {"xid", "gpu_lost", "gpu_hardware", "storage_lost", "storage_back", "port_event", "ib_event", "oom_kill"}
)
_TIME = re.compile(
    r"(?:\[?\s{0,8}\d{1,9}\.\d{3,9}\]?|\[?(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
    r"(?: \d{4})?\]?|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?)[:,]?\s+"
)
_LABEL = re.compile(rf"(?:\[({NAME})\][:,]?\s|\(({NAME})\)[:,]?\s|<({NAME})>:?\s|({NAME})(?::\s|\s{{0,20}}[|>]\s))\s*")
_LAST_LABEL = re.compile(
    rf"(?:^|[\s\[(])({NAME})[\])]?: ?(?:[A-Za-z_][\w.]{{0,60}}(?:Error|Exception): ?)?(?:CUDA error: ?)?$"
)
_HEADING = re.compile(
    rf"\s{{0,3}}(?:#{{1,6}} ?|[=\-*~]{{2,}} ?|\d{{1,2}}[.)] )?(?:(?i:(?:and |only )?on|from|host|node|machine"
    rf"|server)[ :]+)?"
    rf"({NAME})(?: (?:has|shows|says|printed|gives|had)(?: (?:this|these|that|only this))?)?"
    r"(?:(?P<end> ?:)| ?[=\-*~]{2,})?\s*"
)
# `nid001240 (where ranks 0-3 are), dmesg:`, `gn7 kernel log`
_KERNEL_OF = re.compile(
    rf"[\s#*=-]{{0,6}}(?:on )?({NAME})(?: ?\([^()\n]{{1,60}}\))?[,:]? (?:has |'s )?"
    r"(?:dmesg|kernel(?: log| messages?)?|journal(?:ctl)?"
    r"|syslog)\b[^\n]{0,40}?[:=*#-]*\s*"
)
_SAYS = r"(?: (?:has|had|shows|showed|says|gives|printed|logged)(?: (?:only )?(?:this|these|that))?)"
_SENTENCE_END = re.compile(
    rf"(?:^|[\s,(])(?:on|from|of)(?: the)?(?: host| node| machine| server)? ({NAME}){_SAYS}?\)?\s?[:.]?\s*$"
    rf"|(?:^|[\s,(])({NAME}){_SAYS}\s?:\s*$"
)
_CUE = re.compile(  # of a sentence that announces what was found on a host
    r"\b(?:dmesg|kernel|journal(?:ctl)?|syslog|logs?|found|see|saw|machine|node|host|box|nvidia-smi|output|this"
    r"|here|only"
    r"|checked|shows?|has|says)\b",
    re.IGNORECASE,
)
_INLINE = re.compile(
    rf"\b(?:dmesg|kernel log|journal(?:ctl)?|syslog|nvidia-smi)\b.{{0,20}}?\b(?:on|of|from) ({NAME})\b", re.IGNORECASE
)


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
    at_home = found["bare"] and text[found.end("bare") :].startswith(":~")  # `trainbox:~$`
    if found["bare"] and not at_home and as_rank(found["bare"]) is None and not is_host_name(found["bare"]):
        return None
    if ssh := _SSH.match(command):
        return Prompt(ssh[1], True, ssh[1], command)
    if one := _ON_ONE.match(command):
        return Prompt(one[1] or one[2], True, one[1] or one[2], command)
    if _ELSEWHERE.match(command):
        return Prompt(None, True, None, command)
    host = name if name and as_rank(name) is None and name != "localhost" else None
    return Prompt(host, name is not None, name, command)


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


@dataclass(slots=True)
class OwnerHints:
    """Hints at the process of the next dump, from its prefix and the lines before it.

    A rank or PID holds for one dump, a host until the next host. A GPU or worker number is the rank on its host.
    """

    rank: int | None = None
    pid: int | None = None
    host: str | None = None
    local: int | None = None
    fixed: ProcessRef = field(default_factory=ProcessRef)  # from the prefix: holds for every dump
    updated: bool = False  # a line since the last dump gave a hint
    companions: dict[int, tuple[int, ...]] = field(default_factory=dict)  # rank -> the ranks that share its heading
    listed: dict[int, int] = field(default_factory=dict)  # PID -> rank, as a list in the text says
    nodes: Callable[[int], int | None] | None = None  # the node of a process, by its number on it, as the text says
    _row: tuple[int, str | None] | None = None  # the line above names this rank and its PID; the host before it
    _environ: int | None = None  # the last command printed the environment of this PID; -1: of several
    _taken: int | None = None  # rank of the last dump
    _spoke: int | None = None  # the rank that calls itself so in the line above
    _before: tuple[str, str] = ("", "")
    _since: int = 0  # lines since a heading named a rank

    def take(self, pid: int | None = None) -> ProcessRef:
        """The process of the dump that begins here; consumes its rank and PID."""
        pid = pid if pid is not None else self.pid if self.pid is not None else self.fixed.pid
        rank = self.fixed.rank if self.fixed.rank is not None else self.rank
        if rank is None:
            rank = self.listed.get(pid) if pid is not None else self._spoke if self.local is None else None
        if rank is None and pid is None and self.local is not None:
            pid = LOCAL_PIDS - self.local
        process = ProcessRef(rank, self.fixed.host or self.host, pid)
        if rank is None and self.local is not None:
            process = replace(process, local=self.local)
        elif rank is None and self.fixed.local is not None:
            process = replace(process, local=self.fixed.local, node=self.fixed.node)
        self._taken = rank
        self.rank = self.pid = self.local = self._spoke = self._row = None
        self.updated = False
        return process

    def node_of(self, local: int) -> int | None:
        """The node of a process that is shown here by its number on its host."""
        return self.nodes(local) if self.nodes is not None else None

    def rank_of(self, process: ProcessRef, pid: int | None) -> int | None:
        """The rank of a dump whose PID was found in it."""
        return self.listed.get(pid) if process.rank is None and pid is not None else process.rank

    def give_back(self, process: ProcessRef) -> None:
        """The process of a dump that turned out to be empty: the text says whose stack it shares."""
        self.rank, self.pid, self.updated = process.rank, process.pid, True

    def observe_command(self, command: str) -> None:
        """The rank in a comment behind the command line of a process: `python train.py  # rank 3`."""
        comment = _COMMENT_OF_COMMAND.search(command[-400:])
        if comment and (rank := _RANK.search(_OTHER_RANK.sub(" ", comment[0]))):
            self.rank = int(rank[1])

    def observe(self, text: str) -> None:
        """Read a line between dumps; most are prose without a reliable hint."""
        self._since += 1
        before, self._before = self._before, (self._before[1], text)
        row, self._row = self._row, None
        if prompt := prompt_of(text):
            self._observe_prompt(prompt)
            return
        if not text.strip():
            return
        if listed := PID_FIRST.fullmatch(text):
            self._list(int(listed[1]), int(listed[2]))
            return
        if self._environ is not None and (own := _OF_ENVIRON.fullmatch(text)):
            if self._environ >= 0:
                self._list(self._environ, int(own[1]))
            return
        spoke = _SPOKE.match(text)
        self._spoke = int(spoke[1]) if spoke else None
        if len(text) > 200 and not _LISTED.search(text):
            return
        if len(pairs := _LISTED.findall(text)) > 1 and _RANK_AND_PID.search(text):
            self._observe_list([(int(one), int(other)) for one, other in pairs])
            return
        if len(text) < 400 and (one := _RANK_OF_PID.search(text)) and len(self.listed) < MAX_COMPANIONS:
            self.listed.setdefault(int(one["pid"]), int(one["rank"]))
        if self.rank is not None and self.updated and (mark := elision(text)) and mark.said:
            self._observe_alike(mark.rank if mark.rank is not None else self._taken)
            return
        if same := _SAME.search(text):
            self._observe_same(_CLAUSE.split(text[: same.start()])[-1] or text[: same.start()], int(same[1]))
            return
        if title := _TITLE.fullmatch(text):
            name = _ENDING.sub("", title[1] or title[2])
            if not _RANK.search(name) and not _LOCAL.search(name) and _may_be_host(name):
                self.host, self.updated = name, True
                return
        if ruled := _between_rulers(*before, text):
            self.host, self.updated = ruled, True
            return
        around = self.host
        if self._observe_labels(text) and self.rank is not None and self.pid is not None:
            self._observe_row(row, around)

    def _observe_prompt(self, prompt: Prompt) -> None:
        """The host of the prompt, and the process that its command names."""
        if prompt.host is not None or not prompt.states_host:
            self.host = prompt.host or self.host
        rank = as_rank(prompt.name) if prompt.name else None
        comment = _COMMENT.search(prompt.command)
        if comment and rank is None and (said := _RANK.search(_OTHER_RANK.sub(" ", comment[0]))):
            rank = int(said[1]) if not _several(comment[0]) else None
        environ = _ENVIRON.search(prompt.command)
        self._environ = int(environ[1] or -1) if environ else None
        pid, option = _PID.search(prompt.command), _PID_OPTION.search(prompt.command)
        if pid is None and option and int(option[1]) in self.listed:
            pid = option
        elif option and rank is None and self._since > MAX_ABOVE and _DEBUGGER.search(prompt.command):
            self.rank, self.updated = None, False  # the heading further up is that of another tool's dump
        if rank is not None or pid:
            announced = self.rank if self.updated and rank is None else rank  # by a heading above the command
            self.rank, self.pid, self.updated = announced, int(pid[1]) if pid else None, True

    def _observe_same(self, front: str, rank: int) -> None:
        """Ranks of which the text only says that their stack is that of another one."""
        alone = _RANK.search(front)
        others = _several(front) or ((int(alone[1]),) if alone else ())
        if others and rank not in others:
            known = self.companions.get(rank, ())
            self.companions[rank] = (*known, *others)[:MAX_COMPANIONS]

    def _observe_alike(self, rank: int | None) -> None:
        """The process of the heading above has the stack of this rank; no dump of its own follows."""
        if self.rank is not None and rank is not None and rank != self.rank:
            own = (self.rank, *self.companions.pop(self.rank, ()))
            self.companions[rank] = (*self.companions.get(rank, ()), *own)[:MAX_COMPANIONS]
        self.rank = self.pid = self.local = None
        self.updated = False

    def _observe_list(self, pairs: list[tuple[int, int]]) -> None:
        """Ranks and their PIDs, in either order: the numbers of the ranks are the smaller ones."""
        ranks_first = max(one for one, _ in pairs) < min(other for _, other in pairs)
        if len(self.listed) < MAX_COMPANIONS:
            self.listed |= {pid: rank for rank, pid in (pairs if ranks_first else [(b, a) for a, b in pairs])}

    def _list(self, pid: int, rank: int) -> None:
        if len(self.listed) < MAX_COMPANIONS:
            self.listed[pid] = rank

    def _observe_row(self, row: tuple[int, str | None] | None, around: str | None) -> None:
        """A line with a rank and its PID: below another one, it is the row of a list, and no heading."""
        if self.rank is None or self.pid is None:
            return
        self._list(self.pid, self.rank)
        self._row = self.rank, around if row is None else row[1]
        if row is not None and row[0] != self.rank:
            self.rank = self.pid = self.local = None
            self.host, self.updated = row[1], False

    def _observe_labels(self, text: str) -> bool:
        """True if a line names the process of the next dump."""
        text = _ACTOR.sub(lambda found: f" pid {found[1]}" + (f" on {found[2]} " if found[2] else " "), text, count=1)
        rest = _OTHER_RANK.sub(" ", text)
        rest = _NOTE.sub(" ", rest, count=1)
        these = _AND_THESE.search(rest)
        rest = _PIDS.sub(" ", _AND_THESE.sub(" ", rest, count=1), count=1)
        several = _several(rest)
        rank, pid = _RANK.search(rest), _PID.search(rest)
        local = _LOCAL.search(text) if rank is None and not several else None
        if rank is None and pid is None and local is None and not several:
            return False
        rest = _RANKS.sub(" ", rest, count=1) if several else _RANK.sub(" ", rest, count=1)
        rest = _PID.sub(" ", _LOCAL.sub(" ", rest, count=1) if local else rest, count=1)
        host = _HOST.search(rest)
        rest = _FILLER_WORDS.sub(" ", _HOST.sub(" ", rest, count=1))
        words = [
            word for word in _DECORATION.sub(" ", rest.replace("-", "\0")).replace("\0", "-").split() if word.strip("-")
        ]
        if (len(words) > 1 or (words and host)) and not self._is_heading(text, rest, words):
            if (clause := _LAST_CLAUSE.search(text)) and not _LOGGED.search(text):
                self._announce(listed_numbers(clause[1], MAX_COMPANIONS))
            return False  # a sentence
        if host and host[2] and host[2][-1:].isalpha() and _FILLER_WORDS.fullmatch(host[2]):
            host = None  # "on rank 1 py-spy says"
        if host and re.fullmatch(r"(?:local |global )?ranks?", host[1] or host[2] or "", re.IGNORECASE):
            host = None  # the same rank, named twice
        named = _ENDING.sub("", host[1] or host[2]) if host else next(filter(_may_be_host, words), None)
        self.rank = several[0] if several else int(rank[1]) if rank else None
        self._since = 0
        self.pid = int(pid[1]) if pid else None
        self.local = int(local[1]) if local else None
        self.host = named or self.host
        self.updated = True
        if self.rank is not None:
            self.companions.pop(self.rank, None)
            others = (*several[1:], *(listed_numbers(these[1], MAX_COMPANIONS) if these else ()))
            if others:
                self.companions[self.rank] = others[:MAX_COMPANIONS]
        return True

    def _announce(self, ranks: tuple[int, ...]) -> None:
        """The next dump is of these ranks."""
        if ranks:
            self.rank, self.pid, self.local, self.updated = ranks[0], None, None, True
            self.companions.pop(ranks[0], None)
            if ranks[1:]:
                self.companions[ranks[0]] = ranks[1:]

    def _is_heading(self, text: str, rest: str, words: list[str]) -> bool:
        """True if a line of several words announces the stack of one process."""
        if len(words) > 12 or _RANK.search(rest) or _LOGGED.search(text):
            return False
        announces = text.rstrip(" *_`").endswith((":", "->", "=>")) or _DECORATED.fullmatch(text) is not None
        return announces and _LEAD.match(text) is not None


def _between_rulers(above: str, name: str, below: str) -> str | None:
    """The host in a header of clush and dshbak."""
    alone = _ALONE.fullmatch(name) if _RULER.fullmatch(below) and _RULER.fullmatch(above) else None
    return alone[1] if alone else None


def _several(text: str) -> tuple[int, ...]:
    """The ranks in `Ranks 0, 2-4`, if there are several."""
    found = _RANKS.search(text)
    return listed_numbers(found[1], MAX_COMPANIONS) if found else ()


def ranks_in_order(text: str, processes: int) -> tuple[int, ...]:
    """The ranks of so many processes, in the order in which a text shows them, as it says. Empty: it does not say."""
    found = {
        listed_numbers(match["ranks"].replace("rank ", ""), MAX_COMPANIONS)
        if match["ranks"]
        else tuple(range(processes))
        for match in _IN_ORDER.finditer(text)
        if "reverse" not in match[0]
    }
    ranks = found.pop() if len(found) == 1 else ()
    return ranks if len(ranks) == processes else ()


def examined_rank(text: str) -> int | None:
    """The only rank of which sentences say that a debugger was used on it. None: none, or several.

    `py-spy on rank 2 shows`, `rank 5 never got there, so I attached gdb to it`. A sentence about several ranks counts
    for none.
    """
    found: set[int] = set()
    for line in text.split("\n", MAX_LINES)[:MAX_LINES]:
        if len(line) > MAX_PROSE or not _DEBUGGER.search(line) or not _RANK.search(line):
            continue
        for sentence in _SENTENCE.split(line):
            if not _DEBUGGER.search(sentence) or _several(sentence):
                continue
            found |= {int(one[1]) for one in _RANK.finditer(_OTHER_RANK.sub(" ", sentence))}
    return found.pop() if len(found) == 1 else None


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


def _may_be_host(word: str) -> bool:
    """True if a single word beside a rank, or alone in a title, may be a host: `node-a`, `gpu07`, `10.0.0.3`."""
    return bool(_ALONE.fullmatch(word) and re.search(r"[\d.-]", word) and not _FILLER_WORDS.fullmatch(word))


# --- hosts ----------------------------------------------------------------------------------------


@dataclass
class HostContext:
    """The host of each part of a text, found when it is first asked for."""

    content: bytes = b""

    def at(self, line: int) -> str | None:
        """The host of a line (from 1), by the text above it; None: not stated."""
        starts, hosts = self._parts
        part = bisect_right(starts, line) - 1
        return hosts[part] if part >= 0 else None

    @cached_property
    def _parts(self) -> tuple[list[int], list[str | None]]:
        starts: list[int] = []
        hosts: list[str | None] = []
        before, looped = ("", ""), frozenset[str]()
        for number, text in enumerate(self.content.decode("utf-8", "replace").split("\n", MAX_LINES)[:MAX_LINES], 1):
            known, host = _stated(text)
            if loop := _LOOP.search(text[:2000]):
                looped = frozenset(filter(is_host_name, loop[1].split()))
            if text.strip() in looped:
                known, host = True, text.strip()
            if (ruled := _between_rulers(*before, text)) and is_host_name(ruled):
                known, host = True, ruled
            before = before[1], text
            if known and (not hosts or hosts[-1] != host):
                starts.append(number)
                hosts.append(host)
        return starts, hosts


def _stated(text: str) -> tuple[bool, str | None]:
    """Whether a line begins a part of the text, and the host of that part."""
    if len(text) > 300 or not text.strip():
        return False, None
    if prompt := prompt_of(text):
        return prompt.states_host, prompt.host
    if (found := _HEADING.fullmatch(text)) and is_host_name(found[1]) and (found["end"] or text.strip() != found[1]):
        return True, found[1]
    if len(text) <= 160 and (found := _KERNEL_OF.fullmatch(text)) and is_host_name(found[1]):
        return True, found[1]
    if (
        len(text) <= 200
        and (found := _SENTENCE_END.search(text))
        and _CUE.search(text)
        and is_host_name(name := found[1] or found[2])
    ):
        return True, name.rstrip(".")
    return False, None


def host_in_front(raw: str, message: int) -> str | None:
    """The host that a label names in front of the message that begins at offset `message` of a raw line."""
    front = raw[max(0, message - 300) : message]
    if inline := _INLINE.search(front):
        return inline[1] if is_host_name(inline[1]) else None
    rest = front.lstrip(" \t>|")
    for _ in range(4):
        if time := _TIME.match(rest):
            rest = rest[time.end() :]
        elif label := _LABEL.match(rest):
            name = next(group for group in label.groups() if group)
            return name if is_host_name(name) and as_rank(name) is None else None
        else:
            break
    last = _LAST_LABEL.search(front)
    return last[1] if last and is_host_name(last[1]) else None
