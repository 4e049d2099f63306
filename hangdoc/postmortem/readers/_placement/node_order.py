"""The numbers of the hosts of a job, as a start script or a person gives them: host k has the ranks k*n to k*n+n-1.

`on node n0K: RANK=$((4*K+l))`, `for h in a b c; do ssh $h ... --node_rank=$((i++))`, `HOSTS=(a b c)` with
`--node_rank $i`, `node ranks in this order: a, b, c`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hangdoc.postmortem.readers._host_names import NAME

MAX_LINE = 600  # characters
MAX_NAMES = 4096
MAX_LISTS = 64
MAX_VARIABLES = 8
MAX_TEMPLATES = 256  # lines in which a name may end in a variable
NEAR = 4  # lines between the list of hosts and the number that a loop gives them

_VARIABLE = r"\$?\{?(?P<node>[A-Za-z_]\w{0,20})\}?"
# `RANK=$((4*K+l))`, `rank = node_rank * 8 + local_rank`, `export RANK=$(expr 8 \* $N + $i)`
_RULE = re.compile(
    rf"\b(?:GLOBAL_)?RANK\b[\"'\]]{{0,2}} ?[=:] ?(?:\$?\(\(?|`?expr |int\()? ?"
    rf"(?:(?P<size>\d{{1,4}}) ?\\?\* ?{_VARIABLE}"
    rf"|{_VARIABLE.replace('node', 'first')} ?\\?\* ?(?P<factor>\d{{1,4}})) ?\+",
    re.IGNORECASE,
)
# `node k has ranks 8k..8k+7`, `ranks 4*i to 4*i+3 live on node i`
_SPAN_RULE = re.compile(
    r"\branks? (?P<size>\d{1,4}) ?[*x\u00b7]? ?(?P<node>[a-zA-Z])\b ?(?:\.\.\.?|-|\u2013|to|through|,) ?"
    r"(?P=size) ?[*x\u00b7]? ?(?P=node) ?\+ ?\d{1,4}"
)
_TEMPLATE = (  # a name that ends in the variable
    r"(?<![\w$/.-])(?P<prefix>[A-Za-z][A-Za-z0-9_-]{{0,40}}?)(?:\$\{{?{0}\}}?|<{0}>|\{{{0}\}}|{0})(?![\w.(=-])"
)
_NUMBERED = re.compile(r"(?<![\w$/.-])[A-Za-z][A-Za-z0-9_-]{0,40}?\d{1,4}(?![\w-])")
_LIST = rf"{NAME}(?:(?:, ?(?:and )?| and | ?(?:->|<) ?){NAME}){{1,63}}"
_LOOP = re.compile(rf"\bfor \w{{1,20}} in (?P<hosts>{NAME}(?: {NAME}){{1,63}}) ?(?:;|$)")
_ARRAY = re.compile(
    rf"\b\w{{1,30}}=(?:\((?P<hosts>\"?{NAME}\"?(?: \"?{NAME}\"?){{1,63}})\)"
    rf"|[\"'](?P<quoted>{NAME}(?:[ ,]{NAME}){{1,63}})[\"']|(?P<bare>{NAME}(?:,{NAME}){{1,63}})(?=\s|$|;))"
)
# `node_rank = position`, `the position in this list is the node rank`, `same order as the hostfile`
_BY_POSITION = re.compile(
    r"\b(?:node|machine)[ _-]?(?:rank|id|index|number) ?(?:=+|is|are|:|->) ?(?:the |its |their )?"
    r"(?:position|index|place)\b"
    r"|\b(?:position|index|place)\b[^.\n]{0,30}? ?(?:=+|is|are|->) ?(?:the |its |their )?(?:node|machine)[ _-]?rank\b"
    r"|\bin (?:node|machine)[ _-]?rank order\b|\b(?:in )?order of (?:the )?(?:node|machine)[ _-]?ranks?\b",
    re.IGNORECASE,
)
_GIVEN = re.compile(
    r"(?:NODE_?RANK|node[_-]?rank|machine[_-]rank|NODE_?ID|node[_-]?id)[\"']?[= ]{1,2}[\"']?\$?\{?\(?\(?\$?\{?\w{1,20}"
)
_ORDERED = re.compile(
    rf"\b(?:node|machine|host)[ _-]?(?:ranks?|order|numbers?)?\b[^.\n]{{0,40}}?"
    rf"\bin (?:this|that|the same|rank) order\W{{1,4}}"
    rf"(?P<hosts>{_LIST})"
    rf"|\bnode[ _-]?ranks? (?:0 ?(?:-|to|\.\.\.?|\u2013) ?\d{{1,3}})[ :=]{{1,4}}(?:are |is )?(?P<listed>{_LIST})"
    rf"|(?P<before>{_LIST}),? \(?in (?:this|that|node[ _-]?rank) order\b"
    rf"|\b(?:nodes|hosts|machines) ?\(?in (?:node[ _-]?)?rank order\)?\W{{1,4}}"
    rf"(?P<spaced>{NAME}(?:,? {NAME}){{1,63}})(?=\s*(?:$|[.;()]))"
    rf"|\branks (?:are )?(?:placed |numbered |filled )?in (?:node|host|machine) order\W{{1,4}}"
    rf"(?P<behind>{NAME}(?:,? {NAME}){{1,63}})(?=\s*(?:$|[.;()]))"
    rf"|\border of (?:the )?(?:nodes|hosts|machines)\b[^.\n:]{{0,60}}: ?(?P<after>{_LIST})",
    re.IGNORECASE,
)


# The number at the end of its own name makes the number of a host: `--node_rank=$(hostname | grep -o '[0-9]*$')`
_BY_NAME = re.compile(
    r"node[_-]rank[= ][\"']?(?:\$\(hostname \||\$\{(?:HOSTNAME|POD_NAME|MY_POD_NAME)##\*-\}"
    r"|\$\{?(?:JOB_COMPLETION_INDEX|POD_INDEX|VC_TASK_INDEX)\b)",
    re.IGNORECASE,
)
# The list that such a sentence means, as these commands print it: a host a line
_LISTS_HOSTS = re.compile(
    r"\bscontrol show hostnames?\b|\bnodeset -e\b|\bcat \S{0,80}(?:host|machine|node)_?(?:file|list)\b"
)
# `ranks are placed in order of the nodelist`, `ranks in hostfile order`
_BY_LIST = re.compile(
    r"\branks? (?:are |were |get )?(?:placed |numbered |assigned |laid out |filled )?(?:in |by )?(?:the )?(?:same )?"
    r"(?:order of (?:the )?(?:node|host|machine)[ _-]?(?:list|file)|(?:node|host|machine)[ _-]?(?:list|file) order)\b",
    re.IGNORECASE,
)
# A heading with the number of a node, and below it a line that NCCL printed there: `machine A (node_rank 0)`
_NUMBERED_HEADING = re.compile(
    r"\W{0,6}(?:machine|node|host|box|server|pod)?\b[\w .-]{0,24}\W{0,3}\bnode[_ -]?rank[ =:]{0,2}(\d{1,4})\W{0,4}",
    re.IGNORECASE,
)
_PRINTED_BY = re.compile(rf"\s{{0,8}}({NAME}):\d{{1,9}}:\d{{1,9}} \[\d")


@dataclass(slots=True)
class NodeOrder:
    """Takes the lines of a text in order."""

    sizes: set[int] = field(default_factory=set)  # ranks on each host, by rules
    _variables: set[str] = field(default_factory=set)  # that stand for the number of the host
    _names: set[str] = field(default_factory=set)  # words that end in a number
    _templates: set[str] = field(default_factory=set)  # lines in which a name may end in a variable
    _listed: list[tuple[str, ...]] = field(default_factory=list)
    _open: tuple[int, tuple[str, ...]] | None = None  # lines since a list of hosts, which a loop may number
    _by_name: bool = False  # the name of a host ends in its number
    _by_list: bool = False  # the ranks are in the order of a list that the text shows
    _printed: list[list[str]] = field(default_factory=list)  # the hosts that each command printed
    _printing: bool = False
    _headed: int | None = None  # number of the node in the heading above
    _numbered: dict[int, set[str]] = field(default_factory=dict)  # number -> hosts of the lines below such headings
    _line: int = 0

    def feed(self, text: str) -> None:
        self._line += 1
        self._feed_printed(text)
        if not text.strip() or len(text) > MAX_LINE:
            return
        if (printed := _PRINTED_BY.match(text)) and self._headed is not None and len(self._numbered) < MAX_NAMES:
            self._numbered.setdefault(self._headed, set()).add(printed[1])
        lowered = text.lower()
        if "rank" in lowered and (heading := _NUMBERED_HEADING.fullmatch(text)):
            self._headed = int(heading[1])
        if "rank" in lowered:
            for found in (*_RULE.finditer(text), *_SPAN_RULE.finditer(text)):
                groups = found.groupdict()
                size = int(groups["size"] or groups.get("factor") or 0)
                variable = groups["node"] or groups.get("first") or ""
                if size > 1 and len(self._variables) < MAX_VARIABLES:
                    self.sizes.add(size)
                    self._variables.add(variable)
        if len(self._names) < MAX_NAMES:
            self._names.update(_NUMBERED.findall(text))
        if len(self._templates) < MAX_TEMPLATES and re.search(r"node|host|machine|box|server|ssh", lowered):
            self._templates.add(text)
        self._feed_lists(text)

    def _feed_printed(self, text: str) -> None:
        """The hosts that a command prints, one a line."""
        if len(text) <= MAX_LINE and _LISTS_HOSTS.search(text) and len(self._printed) < MAX_LISTS:
            self._printed.append([])
            self._printing = True
        elif self._printing and len(self._printed[-1]) < MAX_NAMES and re.fullmatch(NAME, text.strip()):
            self._printed[-1].append(text.strip())
        else:
            self._printing = False

    def _feed_lists(self, text: str) -> None:
        if found := _LOOP.search(text) or _ARRAY.search(text):
            hosts = _hosts(next(filter(None, found.groups())))
            self._open = (self._line, hosts) if hosts else self._open
        if self._open and self._line - self._open[0] <= 1 and _BY_POSITION.search(text):
            self._add(self._open[1])
        if self._open and self._line - self._open[0] <= NEAR and (given := _GIVEN.search(text)):
            if "$" in given[0]:
                self._add(self._open[1])
            self._open = None
        self._by_name = self._by_name or _BY_NAME.search(text) is not None
        self._by_list = self._by_list or _BY_LIST.search(text) is not None
        if (ordered := _ORDERED.search(text)) and (hosts := _hosts(next(filter(None, ordered.groups())))):
            self._add(hosts)

    def _add(self, hosts: tuple[str, ...]) -> None:
        if len(self._listed) < MAX_LISTS:
            self._listed.append(hosts)

    def numbers(self) -> Mapping[int, str]:
        """Number -> host. Empty: not stated, or in several ways."""
        found: list[Mapping[int, str]] = [dict(enumerate(hosts)) for hosts in dict.fromkeys(self._listed)]
        if self._by_list:
            found += [dict(enumerate(hosts)) for hosts in self._printed if len(set(hosts)) == len(hosts) > 1]
        headed = {number: min(hosts) for number, hosts in self._numbered.items() if len(hosts) == 1}
        if len(set(headed.values())) == len(self._numbered) > 1:
            found.append(headed)
        if self._by_name and (series := self._series()):
            found.append(series)
        found += [
            numbers for prefix in sorted(self._prefixes())[:MAX_LISTS] if len(numbers := self._with_prefix(prefix)) > 1
        ]
        return found[0] if found and all(one == found[0] for one in found) else {}

    def _series(self) -> Mapping[int, str]:
        """The only names that are numbered from 0, in full: `moe-worker-1`, and not `worker-1`. Empty: several are."""
        prefixes = {name.rstrip("0123456789") for name in self._names}
        found = {prefix: numbers for prefix in prefixes if {0, 1} <= (numbers := self._with_prefix(prefix)).keys()}
        whole = [prefix for prefix in found if prefix.endswith("-") and all(prefix.endswith(one) for one in found)]
        return found[whole[0]] if len(whole) == 1 else {}

    def _prefixes(self) -> set[str]:
        prefixes = set()
        for variable in filter(None, self._variables):
            pattern = re.compile(_TEMPLATE.format(re.escape(variable)))
            for text in self._templates:
                prefixes |= {match["prefix"] for match in pattern.finditer(text)}
        return prefixes

    def _with_prefix(self, prefix: str) -> Mapping[int, str]:
        names = (name for name in self._names if name.startswith(prefix) and name[len(prefix) :].isdecimal())
        return {int(name[len(prefix) :]): name for name in sorted(names, key=len, reverse=True)}


def _hosts(text: str) -> tuple[str, ...]:
    """The names in a list, without the words that follow it; empty: one comes twice, or is a number."""
    text = re.split(r"(?<=\w)\.\s", text, maxsplit=1)[0]  # the sentence ends behind the last one
    names = tuple(name.rstrip(".-") for name in re.split(r"[,\s\"]+|\band\b", text) if name)
    if len(names) > 2 and all(re.search(r"[\d-]", name) for name in names[:-1]) and names[-1].isalpha():
        names = names[:-1]  # `n1, n2, n3, ranks filled by node`
    return names if len(set(names)) == len(names) > 1 and all(name[:1].isalpha() for name in names) else ()
