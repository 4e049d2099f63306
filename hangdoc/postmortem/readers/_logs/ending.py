"""What the end of a log shows beyond single messages: how far each rank counted, what it printed of its weights, and
errors without a traceback.

Almost every line of a log may be a progress bar or a counter, so that no anchor finds only those that matter: the last
ones. They are read from the end of the file.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hangdoc.postmortem.readers._logs.alone import AloneLines, alone, may_be_alone
from hangdoc.postmortem.readers._logs.attribution import LineOrigin
from hangdoc.postmortem.readers._logs.local_values import LocalValues, has_nonfinite
from hangdoc.postmortem.readers._logs.prefixes import Line, PrefixStyle, parse
from hangdoc.postmortem.readers._logs.printed_lines import (
    ALONE,
    COUNTER,
    DIFFERS_IN_PARTS,
    FAREWELL,
    FINITE,
    IN_PARTS,
    MAX_STEP_TEXT,
    MAYBE_START_VALUE,
    NONFINITE,
    OF_BATCH,
    RESUMED,
    PrintedValue,
    of_local,
    printed_in,
    start_values_in,
    step_in,
)
from hangdoc.postmortem.readers._logs.scan import ScanSummary
from hangdoc.postmortem.readers._logs.step_times import StepPace, StepTimes
from hangdoc.redaction.text import redact_text

MAX_BYTES = 512 * 2**10  # searched at the end of a file
MAX_BYTES_OF_ONE = 16 * 2**10
MAX_LINES = 4_000  # of a file that several ranks wrote
MAX_LINES_OF_ONE = 24  # of a file that one rank wrote, for its counters
MAX_START, MAX_START_OF_ONE = 64 * 2**10, 16 * 2**10  # bytes searched at the start of a file
MAX_START_LINES = 200
MAX_FIRST_STEPS = 10  # lines of steps after which a rank's start is over
MAX_COUNTERS = 20_000  # ranks and units
MAX_ERRORS = 64
TEXT = 400  # characters of an error that are kept

# `Epoch 3:  45%|####   | 450/1000 [10:12<12:28, 1.36s/it]`
_BAR = re.compile(r"\d{1,3}%\|[^|\n]{0,200}\| *(?P<at>\d{1,15})/(?P<of>\d{1,15}) *\[")
# tqdm without a total: `Epoch 3: 38batch [00:04,  9.20batch/s]`
_OPEN_BAR = re.compile(
    r"(?<![\w.])(?P<at>\d{1,15})(?P<of>)[a-z]{1,16} \[\d[\d:]{3,10}, {0,4}[\d.?]{1,12} ?[a-z]{1,16}/s"
)
# Behind the rank: `[r0] b417 forward`, `r2 it 623 done`, `[r0] e1 it 622 gn 1.664`
_SHORT_COUNTER = re.compile(
    r"\W{0,4}(?:e(?:p(?:och)?)?[ =:#]?\d{1,5}\W{1,3})?(?P<unit>b|it|mb)[ =:#]?(?P<at>\d{1,9})(?=[\s:,|]|$)",
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
    r"|\b(?:num(?:ber)?[_ ](?:of[_ ])?|n_?)(?:batches|steps|iterations|iters)"
    r"|\b(?:batches|steps|iterations)[_ ](?:per|in)[_ ](?:an[_ ])?epoch)\W{1,4}(?P<at>\d{1,9})\b",
    re.IGNORECASE,
)
_DONE = re.compile(
    r"\b(?:finished|done|completed|processed)\b\D{0,24}\b(?P<at>\d{1,9}) (?:batches|steps|iterations)\b", re.IGNORECASE
)
# `BucketSampler -> max_tokens=16000, 1874 batches`
_OF_SAMPLER = re.compile(
    r"\b\w{0,40}(?:sampler|loader)\w{0,20}\b[^\n]{0,120}?(?<![\w.])(?P<at>\d{1,9}) (?:mini-?)?batches\b(?!\W{0,2}/)",
    re.IGNORECASE,
)
LENGTH = "length"  # unit of such a number
EPOCHS = "epoch"  # unit of a rank's lines that count nothing else
# `12%|#  | 40211400/330110400 [10:02<1:12:10, 66830.1B/s]`: of a file that is read, not of steps
_IN_BYTES = re.compile(r"[\d:]{4,12}<[\d:?]{1,12}, {0,4}(?:[\d.]{1,20}[kMGT]?i?|\?)B/s")
BYTES = "bytes"  # begin of the unit of such a bar
_MAYBE = re.compile(
    r"%\||step|loader|dataset|sampler|iter|batch|update|epoch|Error|Exception"
    r"|loss|stop|exit|finished|bye|training|reached|all done"
    r"|nan\b|grad|\bgn\b|_gn\b|\|g|val|eval|fwd|forward|compute|norm|sha|sum|hash|md5|world.?size"
    r"|replica|num_processes|checkpoint|commit|revision|vocab|tok|emb|param|lr\b|dtype|precision|restor|resum|len|[\[(]\s?[\"'\d]",
    re.IGNORECASE,
)
_MAYBE_ERROR = re.compile(r"(?:Error|Exception|Interrupt): ")
_BARE_RANK = re.compile(r"\s{0,8}(\d{1,4})[:)]?\s{1,4}\[")
_WORKER = re.compile(r"\s{0,8}\[?worker[ _-]?(\d{1,4})[\]:]", re.IGNORECASE)
_ITS_GPU = re.compile(r"\bcuda:(\d{1,3})\W{0,3}$")
_RANK = re.compile(
    r"(?<![\w-])(?:global[_ ])?"
    r"(?:rank|rk|r(?=[=:]\d|\d{1,6}(?:[\])]|\s{1,4}(?:s(?:tep)?|it(?:er)?|m?b)[ =]?\d{1,9}\b)))"
    r"[\"']?(?:[=#_-]| {1,4}|: ?)?(\d{1,6})\b(?!\.\d)",
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
class Ending:
    """The last counters, the error lines and the printed values, by origin."""

    counters: tuple[tuple[LineOrigin, Counter], ...]
    errors: tuple[tuple[LineOrigin, ErrorLine], ...]
    printed: tuple[tuple[LineOrigin, PrintedValue], ...]
    alone: AloneLines | None = None  # processes of no known rank that each started alone; None: none, or one
    pace: StepPace | None = None  # of steps with and without a recompilation; None: there are none of either


def read_ending(
    summary: ScanSummary, style: PrefixStyle, origin_of: Callable[[Line], LineOrigin], one: bool = False
) -> Ending:
    """From the first and the last bytes of a file; `one`: a single rank wrote it."""
    counters: dict[tuple[LineOrigin, str], Counter] = {}
    errors: list[tuple[LineOrigin, ErrorLine]] = []
    printed: dict[tuple[LineOrigin, str, int | None, str], PrintedValue] = {}
    batches: dict[tuple[LineOrigin, str], tuple[int, int]] = {}  # by form: the run, and the last step of its samples
    tail = summary.tail[-(MAX_BYTES_OF_ONE if one else MAX_BYTES) :].decode("utf-8", "replace")
    texts = tail.split("\n")[-MAX_LINES:]
    first = summary.lines - len(texts) + (1 if texts and texts[-1] else 2)
    counted = len(texts) - MAX_LINES_OF_ONE if one else 0
    starts, local, steps = AloneLines(), LocalValues(), StepTimes()
    heading = ""  # of a list of samples
    ranked = not one and any("rank" in raw for raw in texts)  # else its workers are the ranks
    parted = False  # the ranks hold parts of one model
    nonfinite = has_nonfinite(tail)
    says_alone = one and may_be_alone(tail)

    def keep(value: PrintedValue, by: LineOrigin) -> None:
        if len(printed) < MAX_COUNTERS:
            if value.name.startswith((NONFINITE, FAREWELL)):
                printed.setdefault((by, value.name, None, ""), value)
            else:
                step = None if value.name.startswith(FINITE) else value.step
                printed[by, value.name, step, value.form] = value

    ended_at = max(first, 1) + max(counted, 0)  # from this line on, all is read
    first_steps = 0
    for number, raw in enumerate(_start(summary.head, one), 1):
        if number >= ended_at or (one and first_steps >= MAX_FIRST_STEPS):
            break
        parted = parted or IN_PARTS.search(raw) is not None
        if MAYBE_START_VALUE.search(raw):
            line = parse(raw, style)
            step = step_in(line.text[:MAX_STEP_TEXT])
            first_steps += step is not None
            for value in start_values_in(line, number, step):
                keep(value, _printing(line, value, _counting(line, origin_of), ranked))
    for place, raw in enumerate(texts):
        number = max(first, 1) + place
        parted = parted or IN_PARTS.search(raw) is not None
        if one:
            is_alone = says_alone and alone(raw) is not None
        else:
            is_alone = starts.feed(raw, number)
            steps.feed(raw, number)
        for shown_value in local.feed(raw, number) if nonfinite else ():
            keep(of_local(shown_value, raw), LineOrigin(shown_value.rank))
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
            samples = False
            for value in printed_in(line, number, heading):
                if value.rank is not None:
                    by = LineOrigin(value.rank)
                elif value.name == ALONE:
                    by = origin_of(line)  # the rank in the text is 0 in each of them
                else:
                    by = _printing(line, value, _counting(line, origin_of), ranked)
                if value.name in OF_BATCH:
                    samples = True
                    run, last_step = batches.get((by, value.form), (1, -1))
                    step = last_step + 1 if value.step is None else value.step
                    run += step <= last_step  # the text shows another run
                    batches[by, value.form] = run, step
                    value = replace(value, step=step, form=f"{value.form} {run}")
                keep(value, by)
            heading = heading if samples or not raw.strip() else raw
            match = _ERROR.match(line.text)
            if match and len(errors) < MAX_ERRORS:
                message = redact_text(match["message"])[:TEXT]
                by_torch = bool(_TORCH_PREFIX.search(part[:300]))
                errors.append((origin_of(line), ErrorLine(match["type"], message, number, line.at, by_torch)))
    if sum(unit == EPOCHS for _, unit in counters) < 2:  # nothing to compare it with
        counters = {key: counter for key, counter in counters.items() if key[1] != EPOCHS}
    shown = {key: replace(counter, text=redact_text(counter.text.strip()[:TEXT])) for key, counter in counters.items()}
    writers: dict[tuple[str, str], set[LineOrigin]] = defaultdict(set)  # of lines of one form
    for origin, name, _, form in printed:
        writers[name, form].add(origin)
    values = tuple(
        (origin, replace(value, text=redact_text(value.text.strip()[:TEXT])))
        for (origin, name, _, form), value in printed.items()
        if not (parted and name.startswith(DIFFERS_IN_PARTS))
        and not (form and not one and len(writers[name, form]) < 2)
    )
    last = tuple((origin, counter) for (origin, _), counter in shown.items())
    return Ending(last, tuple(errors), values, starts if starts.proved else None, steps.pace)


def _start(head: bytes, one: bool) -> list[str]:
    """The first lines of a file, without one that may be cut."""
    most = MAX_START_OF_ONE if one else MAX_START
    texts = head[:most].decode("utf-8", "replace").split("\n")
    return texts[:MAX_START_LINES] if len(texts) > MAX_START_LINES or len(head) <= most else texts[:-1]


def _counting(line: Line, origin_of: Callable[[Line], LineOrigin]) -> LineOrigin:
    """The origin of a line with a counter, which may name the rank in its text, or its GPU at the start.

    A line that names several ranks compares them: `step 431 wait max 1.39 (r4) min 0.001 (r6)`.
    """
    origin = origin_of(line)
    if origin.rank is not None or origin.local is not None:
        return origin
    if named := {int(match[1]) for match in _RANK.finditer(line.text[:200])}:
        return LineOrigin(named.pop(), None, origin.host, origin.pid) if len(named) == 1 else origin
    if match := _GPU.match(line.text):
        return LineOrigin(None, int(match[1]), origin.host, origin.pid)
    return origin


def _printing(line: Line, value: PrintedValue, origin: LineOrigin, ranked: bool) -> LineOrigin:
    """The origin of a line with a value, which may begin with the rank alone or end in its GPU, if it is a list.

    `ranked`: the text speaks of ranks, so that a worker is one of a loader.
    """
    if origin.rank is not None or origin.local is not None or not value.form:
        return origin
    if value.name not in OF_BATCH:
        worker = None if ranked else _WORKER.match(line.text)
        return replace(origin, rank=int(worker[1])) if worker else origin
    if match := _BARE_RANK.match(line.text):
        return replace(origin, rank=int(match[1]))
    if match := _ITS_GPU.search(line.text):
        return replace(origin, local=int(match[1]))
    return origin


def _counters(line: Line, number: int) -> Iterator[Counter]:
    """The counters in a line: the progress bar, else the position in the epoch, else the first counter with a name."""
    text = line.text[-2000:]
    if RESUMED.search(text):
        return  # the steps of an earlier run
    epoch = _EPOCH.search(text)
    in_epoch = int(epoch["epoch"]) if epoch else None
    if match := _BAR.search(text) or _OPEN_BAR.search(text):
        front = " ".join(re.sub(r"[\d\W_]+", " ", text[max(0, match.start() - 80) : match.start()]).split())[-40:]
        kind = BYTES if _IN_BYTES.match(text, match.end()) else "bar"
        unit = f"{kind} {front}".strip()
    elif match := _LENGTH.search(text) or _DONE.search(text) or _OF_SAMPLER.search(text):
        at = int(match["at"])
        yield Counter(LENGTH, None, at, at, None, text, number, line.at)
        return
    elif match := _IN_EPOCH.search(text):
        unit = "batch of the epoch"
    elif (match := COUNTER.search(text)) and not _SETTINGS.search(text[: match.start()]):
        unit = re.sub(r"[\W_]+", " ", match["unit"]).strip().lower().rstrip("s")
    elif (behind := _behind_rank(line, text)) is not None and (short := _SHORT_COUNTER.match(text, behind)):
        yield Counter(f"short {short['unit'].lower()}", None, int(short["at"]), None, None, text, number, line.at)
        return
    elif in_epoch is not None and _behind_rank(line, text) is not None and not _SETTINGS.search(text):
        yield Counter(EPOCHS, None, in_epoch, None, None, text, number, line.at)
        return
    else:
        return
    of = int(match["of"]) if match["of"] else None
    at_s = line.at
    yield Counter(unit, in_epoch, int(match["at"]), of, None, text, number, at_s)


def _behind_rank(line: Line, text: str) -> int | None:
    """Where the text behind a rank begins; None: the line names none."""
    if found := _RANK.search(text[:200]):
        return found.end()
    return 0 if line.rank is not None else None


def _after(before: Counter | None, counter: Counter) -> Counter:
    if before is None or counter.epoch != before.epoch or counter.at <= before.at:
        every = before.every if before else None
    else:
        every = counter.at - before.at
    return Counter(counter.unit, counter.epoch, counter.at, counter.of, every, counter.text, counter.line, counter.at_s)
