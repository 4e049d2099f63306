"""The process that the next dump of a text belongs to, by the headings, prompts and lists around it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from hangdoc.evidence.pieces import ProcessRef
from hangdoc.postmortem.readers._elided import elision
from hangdoc.postmortem.readers._host_names import (
    NAME,
    Prompt,
    as_rank,
    between_rulers,
    listed_numbers,
    prompt_of,
)
from hangdoc.postmortem.readers._process_relations import PID_OPTION, ProcessRelations
from hangdoc.postmortem.readers._shell_loops import loop_items

MAX_COMPANIONS = 4096  # ranks under one heading
MAX_ABOVE = 8  # lines between a heading and the command whose output it announces
MAX_HEADING = 200  # characters of a heading
MAX_PROSE = 1_000  # characters of a line of prose
LOCAL_PIDS = -(10**5)  # stands for the PID of GPU 0 of a host, below it those of its other GPUs

RANK = re.compile(  # `rank 3`, `global_rank=3`, `local rank 0 (global 8)`, `SLURM_PROCID=3`
    r"(?<![A-Za-z_])(?:(?:(?:(?:global|world|OMPI_COMM_WORLD|MV2_COMM_WORLD|PMIX?)[ _-]?)?rank|(?:SLURM_)?procid)"
    r"[\s:=#_-]{0,4}|(?<=\()global[ :=]{1,3})"
    r"(\d{1,6})(?!\d)",
    re.IGNORECASE,
)
_RANKS = re.compile(
    r"(?<![A-Za-z_])ranks?[\s:=#_\[(-]{0,4}"
    r"(\d{1,6}(?:\s{0,2}(?:,(?: and)?|and|&|-|\u2013|to|through|thru|\.\.)\s{0,2}(?:rank[ =])?\d{1,6}){1,64})(?![\w.])",
    re.IGNORECASE,
)
OTHER_RANK = re.compile(
    r"(?:local|node|group)[ _-]?rank[\s:=#_-]{0,4}\d{1,6}|world[ _-]?size[\s:=]{0,3}\d{1,6}|(?<=\d)\s?(?:/"
    r"|of)\s?\d{1,6}\b",
    re.IGNORECASE,
)
_LOCAL = re.compile(
    r"(?<![A-Za-z_])(?:gpu|card|cuda|device|local(?:[ _-]?(?:rank|proc(?:ess)?|id))?|worker|proc)"
    r"[\s:=#_-]{1,3}(\d{1,4})(?![\d.]|:\d)",
    re.IGNORECASE,
)
_PID = re.compile(r"(?<![A-Za-z_])(?:--)?pid[\s:=#_]{0,4}(\d{1,9})(?!\d)", re.IGNORECASE)
_BARE_PID = re.compile(r"\d{3,9}")
_PIDS = re.compile(r"(?<![A-Za-z_])pids?[\s:=#_]{0,4}\d{1,9}(?:(?:,(?: and)?|and|&) ?\d{1,9}){1,64}", re.IGNORECASE)
# One process in a sentence: `rank 2 (pid 88213)`, `rank 1 is different. gdb on its pid 40417`
_RANK_OF_PID = re.compile(
    r"(?<![A-Za-z_])rank[ _#=:-]{0,2}(?P<rank>\d{1,6})\b(?:(?!ranks?\b|\bpid)[^\n\d]){0,60}?"
    r"\bpid[ :=#]{0,3}(?P<pid>\d{1,9})\b",
    re.IGNORECASE,
)
# The other way round: `gx2, pid 81 (r2)`
_PID_OF_RANK = re.compile(r"\bpid[ :=#]{0,3}(?P<pid>\d{1,9}) ?[(=] ?r(?P<rank>\d{1,6})\b", re.IGNORECASE)
# Behind the rank whose stack is shown: `rank 0 (2 and 3 are the same)`
_AND_THESE = re.compile(
    r"\((?:also |and |ranks? ){0,3}(\d{1,6}(?: ?(?:,(?: and)?|and|&|-|\u2013|to) ?\d{1,6}){0,64}) (?:is |are |looks? )?"
    r"(?:all )?(?:exactly |just )?(?:the )?(?:same|identical|alike|like (?:it|this|that)|as well|too)\b[^()\n]{0,30}\)",
    re.IGNORECASE,
)
_ALIKE_AT_END = re.compile(  # `taken on gx2 a minute before, rank 4 (5, 6, 7 the same):`
    r"[,;] rank[ _-]?\d{1,6} \([^()\n]{3,60}\b(?:same|identical|alike)\b[^()\n]{0,20}\):\s*$", re.IGNORECASE
)
# `so I got py-spy of pid 61 (that's local rank 0) at 07:10, same picture both times:`
_DUMP_OF = re.compile(
    r"(?:[^\n]{0,80}\W)?(?:py-spy|pystack|gdb|stack|dump)(?: dump)? (?:of|on|for|from) (?:the )?pid (?P<pid>\d{1,9})\b"
    r"(?: \((?:\w{2,6}(?:'s)? |= ?){0,2}local[ _]rank (?P<local>\d{1,3})\))?(?![^\n]*\b(?:pid|rank)\b)[^\n]{0,80}:\s*",
    re.IGNORECASE,
)
# `py-spy, gx2, all 8 of them (global ranks 8..15):`
_RANKS_AT_END = re.compile(
    r"\((?:the |global |world ){0,2}ranks?[ =](?:[\d ,&.\u2013-]|and |rank[ =]){1,80}\)\s?:\s*$", re.IGNORECASE
)
# In front of a paragraph about one process: `(basalt, rank 1) prints nothing more. I took its stack:`
_LABEL = re.compile(rf"\s{{0,4}}\((?:{NAME}, ?)?(?:global )?rank[ _-]?\d{{1,6}}(?:, ?{NAME})?\):?(?=\s)", re.IGNORECASE)
# Slurm's task is a rank: `## task 0 (pid 190233), tasks 1 and 3 are the same`
_TASK_HEADING = re.compile(r"[\s=\-#*>]{0,12}task[ _#]?\d{1,5}\b(?=[^\n]{0,40}\bpid\b)[^\n]{0,160}", re.IGNORECASE)
_TASK = re.compile(r"\btask(s?)(?=[ _#]?\d)", re.IGNORECASE)
# A heading with a short name: `**stack r0**  (r3 the same)`, `--- r5 ---`, `r2:`
_SHORT_HEADING = re.compile(
    r"(?=[^\n]{0,40}(?:[:*#=\])-]|stack|trace|dump|bt)|\s*r\d{1,5}\s*$)[\s=\-#*~+>\[(]{0,12}"
    r"(?P<rest>(?:(?:stack|trace|traceback|dump|bt|py-spy|main thread|of|on|for)[ :]{1,2}){0,3}"
    r"r\d{1,5}[\s\])*:=~-]{0,8}(?:\([^()\n]{1,60}\)[\s*:]{0,4})?)",
    re.IGNORECASE,
)
# What tail(1) prints above the log of one rank, perhaps with a note: `==> logs/g6.err <==  (g1 g2 g3: identical)`
_LOG_TITLE = re.compile(
    r"\s*==> (?:[^\s<>]{0,200}/)?(?P<stem>r|g|p|w|rk|out|err|log|std(?:out|err)|train|run|dump|stacks?|trace)[._-]?"
    r"(?P<rank>\d{1,5})\.(?:txt|log|out|err|dump) <==(?:\s{1,8}\((?P<these>(?:(?P=stem)[._-]?\d{1,5}[ ,]{1,2}){0,64}"
    r"(?P=stem)[._-]?\d{1,5})[:,]? (?:are |is )?(?:all )?(?:exactly )?(?:the )?(?:same|identical|alike)\b[^()\n]{0,40}"
    r"\))?\s*",
    re.IGNORECASE,
)
# Names of logs above the stack that is in all of them: `r1.err, r2.err and r3.err:`
_LOG_NAMES = re.compile(
    r"\s{0,4}(?P<stem>r|g|p|rk|rank|gpu)[._-]?\d{1,5}\.(?P<end>txt|log|out|err|dump)"
    r"(?:(?:,(?: and)?| and| ?&) ?(?P=stem)[._-]?\d{1,5}\.(?P=end)){0,64}(?: \([^()\n]{1,40}\))?\s?:\s*",
    re.IGNORECASE,
)
# What a script that folds equal stacks prints above each: `== group A: 7 of 8 ranks  [0 1 2 3 4 6 7] ==`
_FOLDED = re.compile(
    r"\s{0,4}[=\-#*]{2,8}[^\n\[\]()]{0,60}\branks?\b[\s:=]{0,4}[\[(]\s?(?P<ranks>\d{1,6}(?:[ ,]{1,3}\d{1,6}){0,256})"
    r"\s?[\])][\s:=\-#*]{0,12}",
    re.IGNORECASE,
)
_SHORT = re.compile(r"(?<![A-Za-z_\d.])r(\d{1,5})(?![\w.])", re.IGNORECASE)
# A heading: `rank 0, and 1 2 3 4 6 7 look exactly like it`
_LIKE_IT = re.compile(
    r"(?:^|[.:;] |[#=-] )(?:ok[,.]? )?(?:on |of |for )?rank[ _-]?(?P<rank>\d{1,6})(?: \([^()\n]{1,40}\))?,? "
    r"(?:and |ranks? ){0,2}"
    r"(?P<others>\d{1,6}(?:(?: ?,(?: and)?| and| ?&|) \d{1,6}| ?- ?\d{1,6}){0,64})"
    r" (?:all )?(?:look|are|is|looks|show|stand)s? (?:all )?(?:exactly |just |line by line )?"
    r"(?:like it|the same|alike|identical)\b",
    re.IGNORECASE,
)
_AND_RANK = re.compile(
    r"\s{0,8}(?:and|but|then|now)(?: (?:on|for|here is|this is|rank)){0,2} (\d{1,6})\s?[:.]?\s*", re.IGNORECASE
)
# Ray's label of an actor, in its dashboard and in front of its lines: `(RayTrainWorker pid=5102, ip=10.0.0.7)`
_ACTOR = re.compile(r"\((?:[A-Za-z_]\w{0,60} )?pid=(\d{1,9})(?:, ip=([\w.:-]{1,60}))?\)")
_COMMENT_OF_COMMAND = re.compile(r"\s#[^#\n]{0,40}$")
_HOST = re.compile(
    rf"(?<![A-Za-z_])(?:host(?:name)?|node|pod)(?:\s*[:=]\s*|\s+)({NAME})|(?:\bon\s+|@\s*)({NAME})"
    r"|(?<![\w.])(\d{1,3}(?:\.\d{1,3}){3})(?![\w.:])",
    re.IGNORECASE,
)
_FILLER_WORDS = re.compile(
    r"(?<![\w-])(?:stacks?|stacktraces?|traces?|tracebacks?|backtraces?|bt|dumps?|of|for|from|on|the|py-spy|py-bt|pystack|gdb"
    r"|process|worker"
    r"|(?:gpu|card)\s*\d{1,4}|begin|start|output|txt|log|out|err|global|main|thread|python|here|is|this|and|shows?|at"
    r"|both|all|are|std(?:out|err)|tail|end|last|lines?)(?!-?\w)",
    re.IGNORECASE,
)
_DECORATION = re.compile(r"[\s=\-#*>\[\]():.,;|~+/$<_]+")
_TITLE = re.compile(rf"\s*[=\-#*]{{2,}}\s*({NAME})\s*[=\-#*]{{2,}}\s*|==> ({NAME}) <==\s*")
_DECORATED = re.compile(r"\s*(?:[=\-#*~+>]{2,}|#{1,6} )\s*\S.{0,200}")
# What a loop over hosts prints above the output of each: `# node-a`, `node-a:`, `--- node-a`
_ON_HOSTS = re.compile(r"\b(?:for|while|xargs)\b.{0,200}?\b(?:ssh|rsh|kubectl|docker|srun|exec)\b")
_LOOPED = re.compile(rf"\s*(?:[#=\-*>]{{1,6}} ?)?({NAME}):?(?: ?[#=\-*<]{{1,6}})?\s*")
_ENDING = re.compile(r"\.(?:txt|log|out|err|json|dump)$")
_LEAD = re.compile(  # a heading may be a sentence; then it begins with the process, and ends in a colon
    r"[\s\[(=\-#*~+>]{0,20}(?:\d{1,2}[.)] )?(?:(?:here(?:'s| is)|this is|and|on|for|from|the|stack(?:s|trace)?"
    r"|trace(?:back)?|(?:this|that|odd|other|last|stuck|late) one|but|then|now|finally|only|odd|other|last"
    r"|dump|py-spy|gdb|of|global|node \S{1,60}?)[\s:,-]{1,3}){0,5}(?:ranks?|gpu|worker|local[ _-]?rank|proc)\b",
    re.IGNORECASE,
)
# A list of ranks and PIDs in one line: `rank -> pid: 0=90117 1=90118`, `pids 4412 (rank 0), 4413 (rank 1)`.
_LISTED = re.compile(
    r"(?<![\d.:])(\d{1,9})\s{0,2}(?:[=:]|-+>|=>|\(rank[=: ]?|\(pid[=: ]?|is rank|is pid|(?:has |is )?RANK=)"
    r" ?(\d{1,9})(?![\d:]|\.\d)",
    re.IGNORECASE,
)

# A line that a loop over PIDs printed: `71822 RANK=2`, `71822: rank 2`.
PID_FIRST = re.compile(
    r"\s{0,8}(?:/proc/)?(\d{3,9})(?:/environ)?[\s:=,>-]{1,8}(?:[A-Z_]{1,40}=\S{1,40}\s{1,4}){0,8}"
    r"(?:RANK=|SLURM_PROCID=|(?:global )?rank[ =:]{0,2})(\d{1,6})(?!\d)(?:\s{1,4}[A-Z_]{1,40}=\S{1,60}){0,8}"
    r"(?:\s{1,4}[A-Z][a-z+<]{0,3}(?:\s{1,40}(?:-|\w{1,60}))?)?\s*"  # its state and where it sleeps, as in ps
)
# The same with the number on the host: `4120 LOCAL_RANK=0`, `/proc/4120/environ:LOCAL_RANK=0`
LOCAL_OF_PID = re.compile(r"\s{0,8}(?:/proc/)?(\d{3,9})(?:/environ)?[\s:=,>-]{1,8}LOCAL_RANK=(\d{1,4})\s*")

_ENVIRON = re.compile(r"/proc/(?:(\d{1,9})|[^\s/]{1,40})/environ\b")
_OF_ENVIRON = re.compile(r"\s{0,8}(?:export )?RANK=(\d{1,6})\s*")
_VALUES = re.compile(r"(\s{1,40})(?:Arguments|Locals):\s*")  # of py-spy, below a frame: no headings are among them
_RANK_AND_PID = re.compile(
    r"\branks?\b.*\bpids?\b|\bpids?\b.*\branks?\b|\d (?:has |is )?RANK=\d.*\d (?:has |is )?RANK=\d", re.IGNORECASE
)
_SAME = re.compile(
    r"\b(?:(?:same (?:\w{1,12} )?as|identical to|just like|as on|like) (?:on )?rank[ _=-]?|(?:same as|identical to) )"
    r"(\d{1,6})\b(?!\.\d)",
    re.IGNORECASE,
)
# A heading of nothing but ranks, below one that names a rank: `=== 2,3,4 ===`
_NUMBERS = re.compile(
    r"\s{0,4}[=\-#*]{2,8} ?(\d{1,6}(?: ?(?:,(?: and)?|and|&|-|\u2013) ?\d{1,6}){1,64}) ?[=\-#*:]{0,8}\s*"
)
_ALL_SAME = re.compile(r"\b(?:both|all)\b.{0,20}\b(?:same|identical|alike)\b|\b(?:same|identical)\b", re.IGNORECASE)
# Processes of the list, as a heading: `5511, 5512, 5513 look all as this:`, `and 5514:`.
_PIDS_ABOVE = re.compile(
    r"\s{0,8}(?:and |pids? ){0,2}(\d{3,9}(?:(?:, ?(?:and )?| and | & | )\d{3,9}){0,64})\b[^\d\n]{0,40}:\s*"
)
_NOTE = re.compile(  # behind ranks: `(all the same)`
    r"\s?[(\[](?=[^()\[\]\n]{0,50}\b(?:same|identical|alike|all|both|each|stuck|hung|hanging|waiting|fine)\b)"
    r"(?![^()\[\]\n]*\d)[^()\[\]\n]{1,60}[)\]](?=[\s:*_`-]*$)",
    re.IGNORECASE,
)
DEBUGGER = re.compile(
    r"\b(?:c?gdb|lldb|py-?spy|py-?stack|p-?stack|g-?stack|eu-stack|debugger|backtrace)\b", re.IGNORECASE
)
SENTENCE = re.compile(r"[.;!?] ")
_CLAUSE = re.compile(r"[.;:] |\((?=ranks?\b)", re.IGNORECASE)
_SPOKE = re.compile(r"\s{0,8}\[r(?:ank[ _:-]{0,2})?(\d{1,6})\][ :]", re.IGNORECASE)  # a line of this rank's own output
# Behind a command: `py-spy dump -p 811  # rank 5`, `py-spy dump -p 811   (LOCAL_RANK=3)`
_COMMENT = re.compile(r"(?<!\S)#[^#]{1,80}$|\s{2,}\([^()\n]{1,80}\)\s*$")
_LAST_CLAUSE = re.compile(  # "the others are fine. rank 1 is different:"
    r"(?:^|[.;,!] |\b(?:but|only|while|and|on|of|is|was|here's|from) )(?:global )?ranks?[ -]?"
    r"(\d{1,6}(?: ?(?:,(?: and)?|and|&|-|\u2013|to) ?\d{1,6}){0,64})(?:'s)?"
    rf"(?: [A-Za-z'-]{{1,20}}){{0,5}}(?: \((?:on )?({NAME})\))? ?:\s*$",
    re.IGNORECASE,
)
_LOGGED = re.compile(r"\d\d:\d\d:\d\d|\b(?:INFO|WARN|WARNING|ERROR|DEBUG|NCCL)\b|[=:]\s*-?\d{1,9}\.\d|\[[EWI]\d{4}")


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
    relations: ProcessRelations = field(default_factory=ProcessRelations)
    nodes: Callable[[int], int | None] | None = None  # the node of a process, by its number on it, as the text says
    _asked: bool = False  # the process is that of the last command, and not of its heading
    _remote: bool = False  # the last command ran on several hosts in turn
    _row: tuple[int, str | None] | None = None  # the line above names this rank and its PID; the host before it
    _environ: int | None = None  # the last command printed the environment of this PID; -1: of several
    _values: int | None = None  # indent of the heading of variables, while these go on
    _taken: int | None = None  # rank of the last dump
    _spoke: int | None = None  # the rank that calls itself so in the line above
    _before: tuple[str, str] = ("", "")
    _since: int = 0  # lines since a heading named a rank
    _variable: int | None = None  # this many of them at the last value of RANK that a command printed

    def take(self, pid: int | None = None) -> ProcessRef:
        """The process of the dump that begins here; consumes its rank and PID."""
        if pid is not None and self.pid not in (None, pid) and pid in self.listed:
            self.rank = self.listed[pid]  # the heading above is that of another process
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
        self.relations.take(pid)
        self._taken = rank
        self.rank = self.pid = self.local = self._spoke = self._row = self._variable = None
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

    def looped_host(self, text: str) -> str | None:
        """The host whose output follows, where the last command ran on several in turn and printed their names."""
        looped = _LOOPED.fullmatch(text) if self._remote else None
        return looped[1] if looped and _may_be_host(looped[1]) else None

    def observe_command(self, command: str) -> None:
        """The rank in a comment behind the command line of a process: `python train.py  # rank 3`."""
        comment = _COMMENT_OF_COMMAND.search(command[-400:])
        if comment and (rank := RANK.search(OTHER_RANK.sub(" ", comment[0]))):
            self.rank = int(rank[1])

    def observe(self, text: str) -> None:
        """Read a line between dumps; most are prose without a reliable hint."""
        if self._is_value(text):
            return
        self._since += 1
        before, self._before = self._before, (self._before[1], text)
        row, self._row = self._row, None
        if prompt := prompt_of(text):
            self._observe_prompt(prompt)
            return
        if not text.strip():
            return
        if label := _LABEL.match(text):
            text = label[0]  # what follows in the line is a remark
        if _TASK_HEADING.fullmatch(text):
            text = _TASK.sub(r"rank\1", text)
        if short := _SHORT_HEADING.fullmatch(text):
            head, mark, note = short["rest"].partition("(")
            text = _SHORT.sub(r"rank \1", head) + mark + _SHORT.sub(r"\1", note)
        if folded := _FOLDED.fullmatch(text):
            self._announce(tuple(dict.fromkeys(map(int, re.findall(r"\d+", folded["ranks"])))))
            self._since = 0
            return
        if title := _LOG_TITLE.fullmatch(text):
            others = ", ".join(re.findall(r"\d+", title["these"] or ""))
            text = f"== rank {title['rank']} ({others} the same) ==" if others else f"== rank {title['rank']} =="
        elif _LOG_NAMES.fullmatch(text):
            these = re.findall(r"\d+(?=\.[a-z])", text, re.IGNORECASE)
            text = f"== rank {these[0]} ==" if len(these) == 1 else f"== ranks {', '.join(these)} =="
        if self.relations.lists_child(text):
            return
        if listed := PID_FIRST.fullmatch(text):
            self._list(int(listed[1]), int(listed[2]))
            return
        if LOCAL_OF_PID.fullmatch(text):
            return  # a row of a list, which the placement has read, and no heading
        if self.listed and (above := _PIDS_ABOVE.fullmatch(text)) and self._observe_pids(above[1]):
            return
        if self._environ is not None and (own := _OF_ENVIRON.fullmatch(text)):
            if self._environ >= 0:
                self._list(self._environ, int(own[1]))
            else:
                self._observe_variable(int(own[1]))
            return
        spoke = _SPOKE.match(text)
        self._spoke = int(spoke[1]) if spoke else None
        if self._spoke is not None and self._spoke != self.rank:
            self.rank = None  # what the heading announced is over
        if len(text) > MAX_HEADING and not _LISTED.search(text):
            self._observe_end(text)
            return
        if announced := _DUMP_OF.fullmatch(text):
            self._announce_process(int(announced["pid"]), int(announced["local"]) if announced["local"] else None)
            return
        if len(pairs := _LISTED.findall(text)) > 1 and _RANK_AND_PID.search(text):
            ranks = self._observe_list([(int(one), int(other)) for one, other in pairs])
            if _DECORATED.fullmatch(text) and _ALL_SAME.search(text):
                self._announce(ranks)
                self.host = next(filter(_may_be_host, text.split()), self.host)
            return
        one = (_RANK_OF_PID.search(text) or _PID_OF_RANK.search(text)) if len(text) < 400 else None
        if one and len(self.listed) < MAX_COMPANIONS:
            self.listed.setdefault(int(one["pid"]), int(one["rank"]))
        if self.rank is not None and self.updated and (mark := elision(text)) and mark.said:
            self._observe_alike(mark.rank if mark.rank is not None else self._taken)
            return
        if self._taken is not None and (numbers := _NUMBERS.fullmatch(text)):
            self._announce(listed_numbers(numbers[1], MAX_COMPANIONS))
            self._since = 0
            return
        if self._observe_next(text):
            return
        if (child := self.relations.child_in(text)) is not None:
            self.pid, self.updated = child, True
            return
        if self.relations.announces_child(text):
            self.rank = self.pid = self.local = None
            return
        if self.pid is not None and self.updated and self.relations.makes_twin(self.pid, text):
            self.rank = self.pid = self.local = None
            self.updated = False
            return
        if self.relations.observe(text):
            return
        if same := _SAME.search(text):
            if self.rank is not None and self.updated and not text[: same.start()].strip(" ([*-"):
                self._observe_alike(int(same[1]))
                return
            self._observe_same(_CLAUSE.split(text[: same.start()])[-1] or text[: same.start()], int(same[1]))
            return
        if host := self.looped_host(text):
            self.host, self.updated = host, True
            return
        if title := _TITLE.fullmatch(text):
            name = _ENDING.sub("", title[1] or title[2])
            if not RANK.search(name) and not _LOCAL.search(name) and _may_be_host(name):
                self.host, self.updated = name, True
                return
        if ruled := between_rulers(*before, text):
            self.host, self.updated = ruled, True
            return
        around = self.host
        if self._observe_labels(text) and self.rank is not None and self.pid is not None:
            self._observe_row(row, around)

    def _is_value(self, text: str) -> bool:
        """True for a variable of a frame, and for the heading of the variables."""
        if heading := _VALUES.fullmatch(text):
            self._values = len(heading[1])
        elif self._values is not None and len(text) - len(text.lstrip()) <= self._values:
            self._values = None
        return self._values is not None

    def _observe_prompt(self, prompt: Prompt) -> None:
        """The host of the prompt, and the process that its command names."""
        self._spoke = None
        if self._asked:  # the output of the command before is over
            self.rank = self.pid = self.local = None
            self.updated = self._asked = False
        if prompt.host is not None or not prompt.states_host:
            self.host = prompt.host or self.host
        self._remote = _ON_HOSTS.search(prompt.command) is not None
        for item in loop_items(prompt.command):
            if item.pid is not None and item.rank is not None:
                self._list(item.pid, item.rank)
        rank = as_rank(prompt.name) if prompt.name else None
        comment = _COMMENT.search(prompt.command)
        if comment and rank is None and (said := RANK.search(OTHER_RANK.sub(" ", comment[0]))):
            rank = int(said[1]) if not several_ranks(comment[0]) else None
        local = _LOCAL.search(comment[0]) if comment and rank is None else None
        self.relations.ask(prompt.command, comment[0] if comment else "")
        environ = _ENVIRON.search(prompt.command)
        self._environ = int(environ[1] or -1) if environ else None
        pid, option = _PID.search(prompt.command), PID_OPTION.search(prompt.command)
        known = option is not None and (int(option[1]) in self.listed or int(option[1]) in self.relations.parents)
        examined = option is not None and DEBUGGER.search(prompt.command) is not None
        if (pid is None and known) or (local and examined):
            pid = option
        elif option is not None and examined and self.pid not in (None, int(option[1])):
            pid, self.rank, self.updated = option, None, False  # not the process of the heading above
        elif examined and rank is None and self._since > MAX_ABOVE:
            self.rank, self.updated = None, False  # the heading further up is that of another tool's dump
        if rank is not None or pid:
            announced = self.rank if self.updated and rank is None else rank  # by a heading above the command
            self.rank, self.pid, self.updated = announced, int(pid[1]) if pid else None, True
            self._asked = announced is None or rank is not None
        if local:
            self.local, self.updated, self._asked = int(local[1]), True, True

    def _observe_variable(self, rank: int) -> None:
        """RANK as a command prints it for each of several processes: in front of a dump, unless only a list of it."""
        if self._variable == self._since - 1:
            self.rank, self.updated = None, False
        else:
            self._announce((rank,))
        self._variable = self._since

    def _observe_next(self, text: str) -> bool:
        """True for a heading that names a rank and those with the same stack, or the next rank of several."""
        if like := _LIKE_IT.search(text):
            others = listed_numbers(re.sub(r"(?<=\d) (?=\d)", ", ", like["others"]), MAX_COMPANIONS)
            self._announce((int(like["rank"]), *(other for other in others if other != int(like["rank"]))))
        elif self._taken is not None and (following := _AND_RANK.fullmatch(text)) and int(following[1]) != self._taken:
            self._announce((int(following[1]),))
        else:
            return False
        self._since = 0
        return True

    def _observe_same(self, front: str, rank: int) -> None:
        """Ranks of which the text only says that their stack is that of another one."""
        alone = RANK.search(front)
        others = several_ranks(front) or ((int(alone[1]),) if alone else ())
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

    def _observe_list(self, pairs: list[tuple[int, int]]) -> tuple[int, ...]:
        """Ranks and their PIDs, in either order: the numbers of the ranks are the smaller ones. Returns the ranks."""
        ranks_first = max(one for one, _ in pairs) < min(other for _, other in pairs)
        pairs = pairs if ranks_first else [(rank, pid) for pid, rank in pairs]
        if len(self.listed) < MAX_COMPANIONS:
            self.listed |= {pid: rank for rank, pid in pairs}
        return tuple(rank for rank, _ in pairs)

    def _observe_pids(self, numbers: str) -> bool:
        """A heading of processes whose ranks are known: the dump below is that of all of them."""
        ranks = [self.listed.get(int(pid)) for pid in re.findall(r"\d{3,9}", numbers)]
        known = [rank for rank in ranks if rank is not None]
        if len(known) < len(ranks):
            return False
        self._announce(tuple(known))
        self._since = 0
        return True

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
        rest = OTHER_RANK.sub(" ", text)
        rest = _NOTE.sub(" ", rest, count=1)
        these = _AND_THESE.search(rest)
        rest = _PIDS.sub(" ", _AND_THESE.sub(" ", rest, count=1), count=1)
        several = several_ranks(rest)
        rank, pid = RANK.search(rest), _PID.search(rest)
        local = _LOCAL.search(text) if rank is None and not several else None
        if rank is None and pid is None and local is None and not several:
            return False
        rest = _RANKS.sub(" ", rest, count=1) if several else RANK.sub(" ", rest, count=1)
        rest = _PID.sub(" ", _LOCAL.sub(" ", rest, count=1) if local else rest, count=1)
        host = _HOST.search(rest)
        rest = _FILLER_WORDS.sub(" ", _HOST.sub(" ", rest, count=1))
        words = [
            word for word in _DECORATION.sub(" ", rest.replace("-", "\0")).replace("\0", "-").split() if word.strip("-")
        ]
        if (len(words) > 1 or (words and host)) and not self._is_heading(text, rest, words):
            self._observe_clause(text)
            return False  # a sentence
        if host and host[2] and host[2][-1:].isalpha() and _FILLER_WORDS.fullmatch(host[2]):
            host = None  # "on rank 1 py-spy says"
        if host and re.fullmatch(r"(?:local |global )?ranks?", host[1] or host[2] or "", re.IGNORECASE):
            host = None  # the same rank, named twice
        named = _ENDING.sub("", host[1] or host[2] or host[3]) if host else next(filter(_may_be_host, words), None)
        self.rank = several[0] if several else int(rank[1]) if rank else None
        self._since = 0
        self.pid = int(pid[1]) if pid else int(words[0]) if len(words) == 1 and _BARE_PID.fullmatch(words[0]) else None
        self.local = int(local[1]) if local else None
        self.host = named or self.host
        self.updated, self._asked = True, False
        if self.rank is not None:
            self.companions.pop(self.rank, None)
            others = (*several[1:], *(listed_numbers(these[1], MAX_COMPANIONS) if these else ()))
            if others:
                self.companions[self.rank] = others[:MAX_COMPANIONS]
        return True

    def _observe_end(self, text: str) -> None:
        """The ranks that the last sentence of a line of prose announces."""
        last = SENTENCE.split(text)[-1] if len(text) <= MAX_PROSE else ""
        if len(last) <= MAX_HEADING:
            self._observe_clause(last)

    def _observe_clause(self, text: str) -> None:
        """The ranks that the end of a sentence announces: `and rank 6 (n22):`."""
        if (clause := _LAST_CLAUSE.search(text)) and not _LOGGED.search(text):
            self._announce(listed_numbers(clause[1], MAX_COMPANIONS))
            self.host = clause[2] if clause[2] and _may_be_host(clause[2]) else self.host

    def _announce(self, ranks: tuple[int, ...]) -> None:
        """The next dump is of these ranks."""
        if ranks:
            self.rank, self.pid, self.local, self.updated = ranks[0], None, None, True
            self._asked = False
            self.companions.pop(ranks[0], None)
            if ranks[1:]:
                self.companions[ranks[0]] = ranks[1:]

    def _announce_process(self, pid: int, local: int | None) -> None:
        """The next dump is of this process; `local`: its number on its host."""
        self.rank, self.pid, self.local, self.updated = self.listed.get(pid), pid, local, True
        self._asked = False

    def _is_heading(self, text: str, rest: str, words: list[str]) -> bool:
        """True if a line of several words announces the stack of one process."""
        if len(words) > 12 or RANK.search(rest) or _LOGGED.search(text):
            return False
        announces = text.rstrip(" *_`").endswith((":", "->", "=>")) or _DECORATED.fullmatch(text) is not None
        return announces and any((_LEAD.match(text), _ALIKE_AT_END.search(text), _RANKS_AT_END.search(text)))


def several_ranks(text: str) -> tuple[int, ...]:
    """The ranks in `Ranks 0, 2-4`, if there are several."""
    found = _RANKS.search(text)
    return listed_numbers(found[1], MAX_COMPANIONS) if found else ()


def _may_be_host(word: str) -> bool:
    """True if a single word beside a rank, or alone in a title, may be a host: `node-a`, `gpu07`, `10.0.0.3`."""
    is_name = re.fullmatch(NAME, word) and re.search(r"[\d.-]", word) and not word.isdigit()
    return bool(is_name and not _FILLER_WORDS.fullmatch(word))
