"""What the end of a log shows beyond single messages: how far each rank counted, what it printed of its weights, and
errors without a traceback.

Almost every line of a log may be a progress bar or a counter, so that no anchor finds only those that matter: the last
ones. They are read from the end of the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hangdoc.postmortem.readers._logs.alone import AloneLines, alone
from hangdoc.postmortem.readers._logs.attribution import LineOrigin
from hangdoc.postmortem.readers._logs.local_values import LocalValue, LocalValues
from hangdoc.postmortem.readers._logs.prefixes import Line, PrefixStyle, parse
from hangdoc.postmortem.readers._logs.step_times import StepPace, StepTimes
from hangdoc.redaction.text import redact_text

MAX_BYTES = 512 * 2**10  # searched at the end of a file
MAX_BYTES_OF_ONE = 16 * 2**10
MAX_LINES = 4_000  # of a file that several ranks wrote
MAX_LINES_OF_ONE = 24  # of a file that one rank wrote, for its counters
MAX_COUNTERS = 20_000  # ranks and units
MAX_ERRORS = 64
MAX_LOSSES = 8  # of a line
MAX_STEP_TEXT = 400  # characters of a line with values of several ranks in which its step is looked for
TEXT = 400  # characters of an error that are kept

# `Epoch 3:  45%|####   | 450/1000 [10:12<12:28, 1.36s/it]`
_BAR = re.compile(r"\d{1,3}%\|[^|\n]{0,200}\| *(?P<at>\d{1,9})/(?P<of>\d{1,9}) *\[")
# Not loguru's `module:step:144 - `. `step 120`, `global_step=120`, `iteration 120/ 1000`, `Step: [120/1000]`
_COUNTER = re.compile(
    r"\b(?P<unit>(?:global|train(?:ing)?|current)?[_ ]?(?:step|iter(?:ation)?|batch|update)s?)\b"
    r"(?!:\d{1,6} -)[\s:=#\"'\[]{1,4}(?P<at>\d{1,9})(?: ?/ ?(?P<of>\d{1,9}))?(?![\d.])(?! ?(?:ms|s|sec|seconds)\b)",
    re.IGNORECASE,
)
# `epochs=4 batch=2048 lr=0.1`: settings, not a place in them
_SETTINGS = re.compile(r"\b(?:(?:num|max|n|total)_)?epochs\W{1,3}\d{1,6}\b", re.IGNORECASE)
# `Epoch 3 [450/1000]`, `Epoch: [3][450/1000]`
_EPOCH = re.compile(r"\bepoch\W{1,4}(?P<epoch>\d{1,6})", re.IGNORECASE)
_IN_EPOCH = re.compile(r"\bepoch\W{1,4}\d{1,6}[^\d\n]{0,12}\[ *(?P<at>\d{1,9}) */ *(?P<of>\d{1,9})", re.IGNORECASE)
# `len(train_loader)=1250`, `steps per epoch: 1250`, `finished after 1250 batches`: how long a rank's loop is.
_LENGTH = re.compile(
    r"(?:\blen\([\w.]{0,40}(?:loader|dataset|sampler|batches)[\w.]{0,40}\)"
    r"|\bnum(?:ber)?[_ ](?:of[_ ])?(?:batches|steps|iterations)"
    r"|\b(?:batches|steps|iterations)[_ ](?:per|in)[_ ](?:an[_ ])?epoch)\W{1,4}(?P<at>\d{1,9})\b",
    re.IGNORECASE,
)
_DONE = re.compile(
    r"\b(?:finished|done|completed|processed)\b\D{0,24}\b(?P<at>\d{1,9}) (?:batches|steps|iterations)\b", re.IGNORECASE
)
METRIC = "metric"  # begin of the names of results
FINITE, NONFINITE = "finite", "nonfinite"  # begin of the names of losses and of norms of gradients
FAREWELL = "farewell"  # name of a line by which a rank ends its training
EPOCH_END = "end of epoch"  # name of a line by which a rank says that its loop over the batches is over
MAX_FAREWELL = 300  # characters of a line in which it is looked for
ALONE = "world size 1"  # name of a line by which a process says that it is the only one
LENGTH = "length"  # unit of such a number
_MAYBE = re.compile(
    r"%\||step|loader|dataset|sampler|iter|batch|update|epoch|Error|Exception"
    r"|loss|stop|exit|finished|bye|training|reached|all done"
    r"|nan\b|grad|\bgn\b|_gn\b|\|g|val|eval|fwd|forward|compute|norm|sha|sum|hash|md5|world.?size|replica|num_processes|checkpoint",
    re.IGNORECASE,
)
# What replicas have in common: `pnorm 1832.4`, `weights sha1 9be1c4`, `model checksum: ...`
_STATE = re.compile(
    r"\b(?P<name>(?:p(?=norm)|param(?:eter)?s?|weights?|model|state(?:[ _]?dict)?)[ _-]?"
    r"(?:norm|sum|hash|checksum|sha\d{0,3}|md5|fingerprint)|checksum)\b[\s:=]{1,4}(?P<value>[\w.+-]{3,80})",
    re.IGNORECASE,
)
# A result that replicas have in common if they evaluate the same model on the same data: `val_loss 2.1031`
_METRIC = re.compile(
    r"\b(?P<name>(?:val(?:idation|id)?|eval(?:uation)?|test)[ _/-]?(?:loss|acc(?:uracy)?|ppl|perplexity|bleu|f1))\b"
    r"[\s:=]{1,4}(?P<value>\d{1,9}\.\d{2,12})\b",
    re.IGNORECASE,
)
# A loss, or a norm of gradients, of this rank: `local_loss=nan`, `loss: 2.113`, `'grad_norm': inf`
_LOSS = re.compile(
    r"(?<![\w.-])(?P<name>(?:[A-Za-z]\w{0,30}[ _/.-])?"
    r"(?:loss|(?:grad(?:ient)?s?[ _.-]?|g[_-]?)(?:l2[_-]?)?norm|gn|\|{1,2}g(?:rad)?\|{1,2})(?:_\w{1,20})?)"
    r"[\"']?[\s:=]{1,3}(?:tensor\()?(?P<value>[+-]?(?:nan|inf(?:inity)?|\d{1,9}(?:\.\d{1,12})?(?:e[+-]?\d{1,3})?))(?![\w.]\w)",
    re.IGNORECASE,
)
# Of a part of the data, which may be empty, or of all ranks together.
_NOT_OWN = re.compile(
    r"val|eval|test|mean|avg|average|global|reduced|total|scale|best|min|max|ema|smooth", re.IGNORECASE
)
# `1840/90000 loss=1.99`, `[1840/90000] loss=1.99`: a line that begins with its step.
_AT_OF = re.compile(r"\s{0,8}\[?\s{0,8}(?P<at>\d{1,9}) ?/ ?(?P<of>\d{1,9})\]?(?=[\s:,|])")
# A rank ends its training by itself: `early stopping at epoch 7`, `training finished`, `max_steps reached, exiting`
_FAREWELL = re.compile(
    r"\bearly[ _-]?stop(?:ping|ped)?\b(?!\W{0,2}[=:(])"
    r"(?! (?:counter|patience|callback|is|enabled|disabled|config|conditioned|after)\b)"
    r"|\b(?:signal+ing trainer to stop|`?Trainer\.fit`? stopped)\b"
    r"|\btraining (?:loop )?(?:is |has )?(?:finished|completed?|done|ended|over)\b"
    r"|\b(?:finished|completed|done with|stopping|leaving|exiting)(?: the)? (?:training|train(?:ing)? loop)\b"
    r"|\bmax(?:imum)?[ _](?:number of )?(?:steps?|epochs?|iter(?:ation)?s?|time)(?:=\d{1,9})? (?:is |was )?reached\b"
    r"|(?:^|[,;.!] ?)(?:exiting|good ?bye|bye|quitting|all done)\W{0,3}$"
    r"|\b(?:exiting|exited) (?:normally|cleanly|with (?:code )?0)\b",
    re.IGNORECASE,
)
_EPOCH_END = re.compile(
    r"\b(?:end of|finished|completed|done with|finishing)(?: the)?(?: train(?:ing)?)? epoch\b"
    r"|\bepoch\W{0,3}\d{1,6}(?: ?/ ?\d{1,6})?\W{0,3}(?:train(?:ing)? |loop )?(?:is |has )?"
    r"(?:done|finished|completed?|ended|over)\b"
    r"|\b(?:start(?:ing|s)?|begin(?:ning|s)?|running|entering)(?: the)? (?:validation|evaluation|eval|val)\b"
    r"|\b(?:validation|evaluation|eval|CV)(?: epoch)?(?: is| has)? (?:start(?:s|ed|ing)?|beg[ia]ns?|begun)\b",
    re.IGNORECASE,
)
_NO_FAREWELL = re.compile(r"\b(?:not|never|no|if|until|before|will|would|when|set|use|enable)\b|\?", re.IGNORECASE)
_RESUMED = re.compile(
    r"\b(?:resum|restor|load)(?:ed|ing)\b[^\n]{0,60}?\b(?:from|checkpoint|ckpt)\b[^\n]{0,200}?"
    r"(?P<value>(?:step|iter|checkpoint|epoch)[_=-]?\d{1,9})\b",
    re.IGNORECASE,
)
# Times of a part of the step that no other rank can delay: `fwd 0.84s`; and `compute: rank0 0.91s rank1 8.77s`
_PART = re.compile(
    r"\b(?P<name>fwd|bwd|forward|backward|compute)(?:[_ ]?time)?\W{1,3}"
    r"(?P<value>\d{1,6}(?:\.\d{1,9})?) ?(?P<unit>ms|s)\b",
    re.IGNORECASE,
)
_OF_RANK = re.compile(
    r"\brank[ _]?(?P<rank>\d{1,6})\W{1,3}(?P<value>\d{1,6}(?:\.\d{1,9})?) ?(?P<unit>ms|s)\b", re.IGNORECASE
)
_WRITER = re.compile(r"[\[(]?(?:proc(?:ess)?|task|worker|pid|gpu|p)[ _:#=]{0,2}(\d{1,6})[\])]?\b", re.IGNORECASE)
_MAYBE_ERROR = re.compile(r"(?:Error|Exception|Interrupt): ")
_RANK = re.compile(
    r"(?<![\w-])(?:global[_ ])?(?:rank|rk|r(?=[=:]\d|\d{1,6}[\])]))[\"']?(?:[ =#_-]|: ?)?(\d{1,6})\b(?!\.\d)",
    re.IGNORECASE,
)
_GPU = re.compile(r"[\[(]?(?:GPU|gpu|cuda|local[_ ]rank)[ =:#_]?(\d{1,3})\b")  # `[GPU3] Epoch 1 | Steps: 120`
_ERROR = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w{0,80}\.){0,6}[A-Z]\w{0,80}(?:Error|Exception|Interrupt)): (?P<message>\S.{0,400})"
)
_TORCH_PREFIX = re.compile(r"\[rank\d{1,6}\]: ?\S")


@dataclass(frozen=True, slots=True)
class Counter:
    """The last value of a rank's counter."""

    unit: str  # "step", "bar Epoch": counters of one unit are comparable
    epoch: int | None
    at: int
    of: int | None
    every: int | None  # difference to the value before; None: only one was seen
    text: str
    line: int  # from the start of the file
    at_s: float | None  # Unix time (s) of the line

    @property
    def value(self) -> str:
        return f"{self.epoch or 0}:{self.at}"


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """`Type: message` on a line of its own."""

    type: str
    message: str
    line: int
    at_s: float | None
    by_torch: bool  # torch's handler of uncaught exceptions prefixed it with the rank

    @property
    def text(self) -> str:
        return f"{self.type}: {self.message}"


@dataclass(frozen=True, slots=True)
class PrintedValue:
    """A value that every replica should print alike; `value` is "" if the name says it all."""

    name: str
    value: str
    step: int | None
    text: str
    line: int
    at_s: float | None
    rank: int | None = None  # None: the line's


@dataclass(frozen=True, slots=True)
class Ending:
    """The last counters, the error lines and the printed values, by origin."""

    counters: tuple[tuple[LineOrigin, Counter], ...]
    errors: tuple[tuple[LineOrigin, ErrorLine], ...]
    printed: tuple[tuple[LineOrigin, PrintedValue], ...]
    alone: AloneLines | None = None  # processes of no known rank that each started alone; None: none, or one
    pace: StepPace | None = None  # of steps with and without a recompilation; None: there are none of either


def read_ending(
    tail: bytes, lines: int, style: PrefixStyle, origin_of: Callable[[Line], LineOrigin], one: bool = False
) -> Ending:
    """From the last bytes of a file that has `lines` lines in total; `one`: a single rank wrote it."""
    counters: dict[tuple[LineOrigin, str], Counter] = {}
    errors: list[tuple[LineOrigin, ErrorLine]] = []
    printed: dict[tuple[LineOrigin, str, int | None], PrintedValue] = {}
    texts = tail[-(MAX_BYTES_OF_ONE if one else MAX_BYTES) :].decode("utf-8", "replace").split("\n")[-MAX_LINES:]
    first = lines - len(texts) + (1 if texts and texts[-1] else 2)
    counted = len(texts) - MAX_LINES_OF_ONE if one else 0
    starts, local, steps = AloneLines(), LocalValues(), StepTimes()

    def keep(value: PrintedValue, by: LineOrigin) -> None:
        if len(printed) < MAX_COUNTERS:
            if value.name.startswith((NONFINITE, FAREWELL)):
                printed.setdefault((by, value.name, None), value)
            else:
                printed[by, value.name, None if value.name.startswith(FINITE) else value.step] = value

    for place, raw in enumerate(texts):
        number = max(first, 1) + place
        if one:
            is_alone = alone(raw) is not None
        else:
            is_alone = starts.feed(raw, number)
            steps.feed(raw, number)
            for shown_value in local.feed(raw, number):
                keep(_of_local(shown_value, raw), LineOrigin(shown_value.rank))
        may_tell = is_alone or (_MAYBE if place >= counted else _MAYBE_ERROR).search(raw)
        if not may_tell or (number == first > 1):  # it may be cut
            continue
        for part in raw.split("\r"):
            line = parse(part, style)
            for counter in _counters(line, number):
                key = _counting(line, origin_of), counter.unit
                before = counters.get(key)
                if before is not None or len(counters) < MAX_COUNTERS:
                    counters[key] = _after(before, counter)
            for value in _printed(line, number):
                if value.rank is not None:
                    by = LineOrigin(value.rank)
                elif value.name == ALONE:
                    by = origin_of(line)  # the rank in the text is 0 in each of them
                else:
                    by = _counting(line, origin_of)
                keep(value, by)
            match = _ERROR.match(line.text)
            if match and len(errors) < MAX_ERRORS:
                message = redact_text(match["message"])[:TEXT]
                by_torch = bool(_TORCH_PREFIX.search(part[:300]))
                errors.append((origin_of(line), ErrorLine(match["type"], message, number, line.at, by_torch)))
    shown = {key: replace(counter, text=redact_text(counter.text.strip()[:TEXT])) for key, counter in counters.items()}
    values = tuple(
        (origin, replace(value, text=redact_text(value.text.strip()[:TEXT])))
        for (origin, _, _), value in printed.items()
    )
    last = tuple((origin, counter) for (origin, _), counter in shown.items())
    return Ending(last, tuple(errors), values, starts if starts.proved else None, steps.pace)


def _counting(line: Line, origin_of: Callable[[Line], LineOrigin]) -> LineOrigin:
    """The origin of a line with a counter, which may name the rank in its text, or its GPU at the start."""
    origin = origin_of(line)
    if origin.rank is not None or origin.local is not None:
        return origin
    if match := _RANK.search(line.text[:200]):
        return LineOrigin(int(match[1]), None, origin.host, origin.pid)
    if match := _GPU.match(line.text):
        return LineOrigin(None, int(match[1]), origin.host, origin.pid)
    return origin


def _counters(line: Line, number: int) -> Iterator[Counter]:
    """The counters in a line: the progress bar, else the position in the epoch, else the first counter with a name."""
    text = line.text[-2000:]
    epoch = _EPOCH.search(text)
    in_epoch = int(epoch["epoch"]) if epoch else None
    if match := _BAR.search(text):
        front = " ".join(re.sub(r"[\d\W_]+", " ", text[max(0, match.start() - 80) : match.start()]).split())[-40:]
        unit = f"bar {front}".strip()
    elif match := _LENGTH.search(text) or _DONE.search(text):
        at = int(match["at"])
        yield Counter(LENGTH, None, at, at, None, text, number, line.at)
        return
    elif match := _IN_EPOCH.search(text):
        unit = "batch of the epoch"
    elif (match := _COUNTER.search(text)) and not _SETTINGS.search(text[: match.start()]):
        unit = re.sub(r"[\W_]+", " ", match["unit"]).strip().lower().rstrip("s")
    else:
        return
    of = int(match["of"]) if match["of"] else None
    at_s = line.at
    yield Counter(unit, in_epoch, int(match["at"]), of, None, text, number, at_s)


def _printed(line: Line, number: int) -> Iterator[PrintedValue]:
    text = line.text[:2000]
    if alone(text):
        writer = _WRITER.match(text)  # each calls itself rank 0
        yield PrintedValue(ALONE, "", None, text, number, line.at, int(writer[1]) if writer else None)
    if (left := _FAREWELL.search(text[:MAX_FAREWELL])) and not _NO_FAREWELL.search(text[: left.start()]):
        yield PrintedValue(FAREWELL, "", None, text, number, line.at)
    if (end := _EPOCH_END.search(text[:MAX_FAREWELL])) and not _NO_FAREWELL.search(text[: end.start()]):
        yield PrintedValue(EPOCH_END, "", None, text, number, line.at)
    if match := _RESUMED.search(text):
        yield PrintedValue("checkpoint", match["value"].lower(), None, text, number, line.at)
    at = _step_in(text)
    for loss in list(_LOSS.finditer(text))[:MAX_LOSSES]:
        if not _NOT_OWN.search(loss["name"]):
            name = re.sub(r"\W+", " ", loss["name"]).lower()
            yield PrintedValue(f"{_begin(loss['value'])} {name}", loss["value"].lower(), at, text, number, line.at)
    for match in _PART.finditer(text):
        yield PrintedValue(f"seconds of {match['name'].lower()}", _seconds(match), at, text, number, line.at)
    several = list(_OF_RANK.finditer(text))
    for match in several if len(several) > 1 and "reduce" not in text and "wait" not in text else ():
        yield PrintedValue("seconds", _seconds(match), at, text, number, line.at, int(match["rank"]))
    if metric := _METRIC.search(text):
        name = " ".join(re.sub(r"[_/-]", " ", metric["name"]).lower().split())
        yield PrintedValue(f"{METRIC} {name}", metric["value"], at, text, number, line.at)
    for match in _STATE.finditer(text):
        name = " ".join(match["name"].lower().split())
        yield PrintedValue(name, match["value"].rstrip("."), at, text, number, line.at)


def _begin(value: str) -> str:
    return FINITE if value.lstrip("+-")[0].isdigit() else NONFINITE


def _of_local(value: LocalValue, text: str) -> PrintedValue:
    name, step = f"{_begin(value.value)} {value.name}", value.step
    step = _step_in(text[:MAX_STEP_TEXT]) if step is None else step
    return PrintedValue(name, value.value, step, text, value.line, None, value.rank)


def _step_in(text: str) -> int | None:
    """The step that a line names."""
    step = _COUNTER.search(text)
    return int(step["at"]) if step else step_of_total(text)


def step_of_total(text: str) -> int | None:
    """The step that a line begins with; None: it begins with something else."""
    match = _AT_OF.match(text)
    return int(match["at"]) if match and int(match["at"]) <= int(match["of"]) else None


def _seconds(match: re.Match[str]) -> str:
    return f"{float(match['value']) / (1000 if match['unit'] == 'ms' else 1):.6g}"


def _after(before: Counter | None, counter: Counter) -> Counter:
    if before is None or counter.epoch != before.epoch or counter.at <= before.at:
        every = before.every if before else None
    else:
        every = counter.at - before.at
    return Counter(counter.unit, counter.epoch, counter.at, counter.of, every, counter.text, counter.line, counter.at_s)
