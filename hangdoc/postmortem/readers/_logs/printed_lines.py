"""Values that ranks print in their lines: what replicas have in common, losses, results, times of their own work; and
the lines by which a rank ends an epoch or its training.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hangdoc.postmortem.readers._logs.alone import alone
from hangdoc.postmortem.readers._logs.local_values import LocalValue
from hangdoc.postmortem.readers._logs.prefixes import Line

MAX_LOSSES = 8  # of a line
MAX_SETTINGS = 16  # of a line
MAX_STEP_TEXT = 400  # characters of a line with values of several ranks in which its step is looked for
MAX_FAREWELL = 300  # characters of a line in which a farewell is looked for
MAX_FORM = 60  # characters
MAX_LEAD = 60  # characters at the end of a line that may say what the list below it is
LEAST_SAMPLES = 3
LEAST_DIGITS = 5  # of a loss that is not equal by chance

# Names of values.
CHECKPOINT = "checkpoint"  # where a rank resumed from
SAMPLES, DATA, LOCAL_LOSS = "samples", "data", "loss before the reduction"  # what ranks should not have in common
FAREWELL = "farewell"  # by this line a rank ends its training
EPOCH_END = "end of epoch"  # by this line a rank says that its loop over the batches is over
SEED = "seed of the sampler"  # of one that splits the samples among the ranks
ALONE = "world size 1"  # by this line a process says that it is the only one
# Begins of names.
METRIC = "metric"  # a result
FINITE, NONFINITE = "finite", "nonfinite"  # a loss or a norm of gradients
SETTING, OF_MODEL = "setting", "model setting"  # what a job, and what a model, has once
OF_BATCH = (SAMPLES, DATA)
DIFFERS_IN_PARTS = (OF_MODEL, SAMPLES, DATA, LOCAL_LOSS)  # where ranks hold parts of one model, this says nothing

_ITS_RANK = re.compile(
    r"(?<![\w-])(?:rank|rk|r(?=[=:]?\d{1,6}\b))[\"']?(?:[=#_-]| {1,4}|: ?)?\d{1,6}(?: ?/ ?\d{1,6})?\W?", re.IGNORECASE
)
_NUMBERS = re.compile(r"\S*\d\S*")
# Not loguru's `module:step:144 - `. `step 120`, `global_step=120`, `iteration 120/ 1000`, `Step: [120/1000]`
COUNTER = re.compile(
    r"\b(?P<unit>(?:global|train(?:ing)?|current)?[_ ]?(?:step|iter(?:ation)?|batch|update)s?)\b"
    r"(?!:\d{1,6} -)[\s:=#\"'\[]{1,4}(?P<at>\d{1,9})(?: ?/ ?(?P<of>\d{1,9}))?(?![\d.])(?! ?(?:ms|s|sec|seconds)\b)",
    re.IGNORECASE,
)
_SHORT_STEP = re.compile(r"(?<![\w.-])(?:s|it[ =:]{1,2})(\d{2,9})(?=[\s:,|])")  # `r3 s8812 loss=1.94`, `it 120 `
# What replicas have in common: `pnorm 1832.4`, `weights sha1 9be1c4`, `model checksum: ...`
_STATE = re.compile(
    r"\b(?P<name>(?:p(?=norm)|param(?:eter)?s?|weights?|model|lora|adapter|state(?:[ _]?dict)?)[ _-]?"
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
    r"(?<![\w.-])(?P<name>(?:(?!(?:nan|inf)\b)[A-Za-z]\w{0,30}[ _/.-])?"
    r"(?:loss|(?:grad(?:ient)?s?[ _.-]?|g[_-]?)(?:l2[_-]?)?norm|gn|\|{1,2}g(?:rad)?\|{1,2})(?:_\w{1,20})?)"
    r"[\"']?[\s:=]{1,3}(?:tensor\()?(?P<value>[+-]?(?:nan|inf(?:inity)?|\d{1,9}(?:\.\d{1,12})?(?:e[+-]?\d{1,3})?))(?![\w.]\w)",
    re.IGNORECASE,
)
# The same beside a loss, by the name that a hook gives it: `pre=nan post=nan loss=1.94`
_BEFORE = re.compile(
    r"(?<![\w.-])(?P<name>pre|raw|own|local|before)\s?[=:]\s?(?P<value>[+-]?(?:nan|inf|\d{1,9}\.\d{1,12}))(?![\w.]\w)",
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
    r"|\b(?:exiting|exited) (?:normally|cleanly|with (?:code )?0)\b"
    r"|\b(?:leaving|exiting|bye)\W{1,3}exit(?: code)?[ =]0\b",
    re.IGNORECASE,
)
_EPOCH_END = re.compile(
    r"\b(?:end of|finished|completed|done with|finishing)(?: the)?(?: train(?:ing)?)? epoch\b"
    r"|\bep(?:och)?\W{0,3}\d{1,6}(?: ?/ ?\d{1,6})?\W{0,3}(?:train(?:ing)? |loop )?(?:is |has )?"
    r"(?:done|finished|completed?|ended|over)\b"
    r"|\b(?:start(?:ing|s)?|begin(?:ning|s)?|running|entering)(?: the)? (?:cross[ -])?"
    r"(?:validation|evaluation|eval|val|cv)\b|\bon_(?:train_)?epoch_end\b"
    r"|(?:-+>|=>|\u2192) ?(?:the )?(?:validation|evaluation|eval|val)\b"
    r"|\b(?:validation|evaluation|eval|CV)(?: epoch)?(?: is| has)? (?:start(?:s|ed|ing)?|beg[ia]ns?|begun)\b",
    re.IGNORECASE,
)
_NO_FAREWELL = re.compile(r"\b(?:not|never|no|if|until|before|will|would|when|set|use|enable)\b|\?", re.IGNORECASE)
# `Resuming from ckpt/step_4000`, `Loading checkpoint from ep0-ba42000-rank3.pt`, `resume: last.pt global_step=16000`,
# `load_latest('/scratch') -> step_046000.pt`, `optimizer <- /data/optim.pt (global_step 24000)`
RESUMED = re.compile(
    r"\b(?:(?:resum|restor|load|initiali[sz]|continu)(?:ed|ing)\b[^\n]{0,60}?\b(?:from|checkpoint|ckpt)\b"
    r"|(?:resume|restore)(?: from)?\b ?:"
    r"|(?:load|restore|resume)\w{0,30}\([^()\n]{0,160}\) ?(?:-+>|=>|\u2192) ?"
    r"|\w{1,40} ?(?:<-+|\u2190) ?(?=[\w./=-]{1,160}\.(?:pth?|ckpt|safetensors|bin|tar)\b)"
    r"|(?:resum|restor)(?:ed|ing)\b[ :]{1,2}(?=[\w./=-]{1,160}\.(?:pth?|ckpt|safetensors|bin|tar)\b))"
    r"(?P<from>[^\n]{0,200})",
    re.IGNORECASE,
)
_POINT = re.compile(
    r"(?<![A-Za-z])(?:(?:global[_ ]?)?step|iter(?:ation)?|checkpoint|ckpt|epoch|ep|ba|update)"
    r"[_=\s-]{0,2}\d{1,9}(?![\d.]*\d)\b",
    re.IGNORECASE,
)
# What a job has once: its code, its configuration, its vocabulary, the size of its model and the length of its steps.
_SETTING = re.compile(
    r"(?<![\w./-])(?P<name>(?:git[ _-]?|code[ _-]?)?(?:commit|sha|rev(?:ision)?)"
    r"|(?:config|cfg|conf|data(?:set)?|vocab|tokenizer|tok|index|manifest|split|script|args)[ _.-]?"
    r"(?:hash|md5|sha\d{0,3}|checksum|fingerprint|digest|version)"
    r"|(?:vocab(?:ulary)?|tokenizer|tok|dict(?:ionary)?)[ _.-]?(?:size|len(?:gth)?)"
    r"|len\((?:tok|vocab|labels?|classes|dict)\w{0,20}\)"
    r"|(?:n|num|number of|#)[ _]?(?P<of_num>classes|labels|tokens|params|parameters|layers|buckets|experts)"
    r"|(?P<of_model>emb(?:edding)?s?(?:[ _.](?:weight|rows|size|shape|num|dim))?"
    r"|(?:(?:trainable|total)[ _])?(?:params|parameters))"
    r"|(?P<of_step>lr|learning[ _]rate)(?: multiplier| scale| factor)?"
    r"|(?:per[ _]device[ _](?:train[ _])?|micro[ _]?|train[ _])?batch[ _]?size"
    r"|(?:max[ _])?seq(?:uence)?[ _]?len(?:gth)?|grad(?:ient)?[ _]acc\w{0,20}|precision|dtype"
    r"|(?:max|total|num)[ _](?:train[ _])?(?:steps|epochs))"
    r"[\"']?\s?[:=]\s?[\"']?(?P<value>\([\d, ]{1,40}\)|\[[\d, x]{1,40}\]|[\w.+-]{1,80})",
    re.IGNORECASE,
)
# `DistributedSampler(num_replicas=4, rank=1, seed=17)`: the seed must be the same on every rank
# (torch/utils/data/distributed.py).
_SAMPLER = re.compile(
    r"\b(?:distributed[ _-]?\w{0,30}[ _-]?sampler|\w{0,40}sampler(?=.{0,200}\bnum_replicas))\b.{0,200}?"
    r"(?<![A-Za-z])(?:(?:base|shuffle|sampler)[ _]?)?seed[\"']?\s?(?:[:=]\s?|is )?(?P<value>\d{1,20})\b",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"\bepoch[\"']?\s?[:=#]?\s?(\d{1,6})\b", re.IGNORECASE)
# What a line with a checkpoint, a setting or an ordered list has, in any case.
MAYBE_START_VALUE = re.compile(
    r"sampler|resum|restor|load|initiali|continu|commit|sha|rev|hash|md5|check ?sum|digest|fingerprint|version|size|len"
    r"|num|classes|labels|vocab|columns|features|param|emb|lr\b|rate|acc|precision|dtype|steps|epochs",
    re.IGNORECASE,
)
# The same as a list, of which the order counts: `label vocab (6): ['other', 'balance', 'transfer']`
_ORDERED = re.compile(
    r"\b(?P<name>vocab(?:ulary)?|labels|classes|label[ _]?map|columns|features|param(?:eter)?[ _](?:names|order))\b",
    re.IGNORECASE,
)
# The samples of a batch: `ids [14, 3, 9]`, `first keys: ['b7f-17', 'b7f-18', 'c02-11']`, `batch [[14], [3], [9]]`
_ITEM = r"\[?\s?[\"']?[\w./:-]{1,80}[\"']?\s?\]?"
_ITEMS = re.compile(rf"[\[(]\s?(?P<items>{_ITEM}(?:\s?,\s?{_ITEM}){{2,31}})(?:\s?,\s?\.{{2,3}})?\s?[\])]")
_WORD = re.compile(r"[\w./:-]+")
_SAMPLES = re.compile(
    r"\b(?:(?:sample|batch|data|first|utt|example)?[ _]?(?:ids?|idx|ind(?:ex|ices)|keys|urls)|samples|examples|cuts)\b",
    re.IGNORECASE,
)
_MAYBE_SAMPLES = re.compile(r"\bbatch\b", re.IGNORECASE)  # or its shape
_NO_SAMPLES = re.compile(
    r"shape|size|\bdim|device|group|host|column|rank ids|visible|betas|token|input_ids|label", re.IGNORECASE
)
_LOCAL_LOSS = re.compile(
    r"\b(?:local|own|per[ _-]rank|unreduced)[ _-](?:train[ _-])?loss|\bloss[ _-]local\b", re.IGNORECASE
)
# The ranks hold parts of one model, or share one batch.
IN_PARTS = re.compile(
    r"\bpipelin|\btensor[ _-]?(?:model[ _-])?parallel|\b(?:tp|pp|ep|sp|cp)[ _]?(?:size|rank|degree)?[=: ]{1,2}[2-9]"
    r"|\bstage[ _=:-]?\d\b|\bexpert|zero[ _-]?3|\bsequence[ _-]parallel",
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
    form: str = ""  # of its line: only values of one form are compared


def printed_in(line: Line, number: int, above: str = "") -> Iterator[PrintedValue]:
    """The values in a line. `above`: the text before it, which may say what a list is."""
    text = line.text[:2000]
    if alone(text):
        writer = _WRITER.match(text)  # each calls itself rank 0
        yield PrintedValue(ALONE, "", None, text, number, line.at, int(writer[1]) if writer else None)
    if (left := _FAREWELL.search(text[:MAX_FAREWELL])) and not _NO_FAREWELL.search(text[: left.start()]):
        yield PrintedValue(FAREWELL, "", None, text, number, line.at)
    if (end := _EPOCH_END.search(text[:MAX_FAREWELL])) and not _NO_FAREWELL.search(text[: end.start()]):
        yield PrintedValue(EPOCH_END, "", None, text, number, line.at)
    at, losses = step_in(text), list(_LOSS.finditer(text))[:MAX_LOSSES]
    yield from start_values_in(line, number, at, bool(losses))
    if listed := _ITEMS.search(text):
        front = text[: listed.start()]
        if kind := _name_of_list(listed["items"], front, above):
            items = ", ".join(_WORD.findall(listed["items"]))
            yield PrintedValue(kind, items, step_in(front), text, number, line.at, form=_form(text))
    for loss in losses:
        if not _NOT_OWN.search(loss["name"]):
            name = re.sub(r"\W+", " ", loss["name"]).lower()
            yield PrintedValue(f"{_begin(loss['value'])} {name}", loss["value"].lower(), at, text, number, line.at)
            if (
                at is not None
                and _LOCAL_LOSS.search(loss["name"])
                and sum(map(str.isdigit, loss["value"])) >= LEAST_DIGITS
            ):
                yield PrintedValue(LOCAL_LOSS, loss["value"], at, text, number, line.at)
    for match in _BEFORE.finditer(text) if losses else ():
        value = match["value"].lower()
        yield PrintedValue(f"{_begin(value)} {match['name'].lower()}", value, at, text, number, line.at)
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


def start_values_in(line: Line, number: int, step: int | None, with_loss: bool = False) -> Iterator[PrintedValue]:
    """What a rank says in a line of what it starts with: its checkpoint, its settings, the order of its labels.

    A line about a step has few of them: those that change with each step.
    """
    text = line.text[:2000]
    if (match := RESUMED.search(text)) and (points := _POINT.findall(match["from"])):
        yield PrintedValue(CHECKPOINT, " ".join(points).lower(), None, text, number, line.at, form=_form(text))
    for match in list(_SETTING.finditer(text))[:MAX_SETTINGS]:
        if match["of_step"] is None and (step is not None or with_loss):
            continue
        begin = OF_MODEL if match["of_model"] or match["of_num"] else SETTING
        name = " ".join(re.sub(r"[_.-]", " ", match["name"]).lower().split())
        value = match["value"].rstrip(".").lower()
        yield PrintedValue(f"{begin} {name}", value, step, text, number, line.at, form=_form(text))
    if "ampler" in text and (sampler := _SAMPLER.search(text)):
        epoch = _EPOCH.search(text)
        of_epoch = int(epoch[1]) if epoch else None  # some add its number to the seed
        yield PrintedValue(SEED, sampler["value"], of_epoch, text, number, line.at, form=_form(text))
    if not with_loss and (listed := _ITEMS.search(text)) and (ordered := _ORDERED.search(text, 0, listed.start())):
        name, form = f"{SETTING} {ordered['name'].lower()}", _form(text[: listed.start()])
        yield PrintedValue(name, listed["items"], None, text, number, line.at, form=form)


def _name_of_list(items: str, front: str, above: str) -> str | None:
    """SAMPLES, or DATA if a list may be something else. None: it is, or it may be anything.

    Numbers that change with each step, and not with the rank, are the data. `front`, `above`: the text before the list.
    """
    if _NO_SAMPLES.search(front):
        return None
    above = above.rstrip()[-MAX_LEAD:]
    said = _SAMPLES.search(front) or (_SAMPLES.search(above) and not _NO_SAMPLES.search(above))
    if not said and not _MAYBE_SAMPLES.search(front) and step_in(front) is None:
        return None
    words = _WORD.findall(items)
    if len(set(words)) < LEAST_SAMPLES or words == [str(place) for place in range(len(words))]:
        return None
    return SAMPLES if said else DATA


def _form(text: str) -> str:
    """What a line says behind its rank, without its numbers: one statement printed it on several ranks."""
    rank = _ITS_RANK.search(text[:200])
    return _NUMBERS.sub("#", text[rank.end() :] if rank else text).strip()[:MAX_FORM]


def _begin(value: str) -> str:
    return FINITE if value.lstrip("+-")[0].isdigit() else NONFINITE


def of_local(value: LocalValue, text: str) -> PrintedValue:
    name, step = f"{_begin(value.value)} {value.name}", value.step
    step = step_in(text[:MAX_STEP_TEXT]) if step is None else step
    return PrintedValue(name, value.value, step, text, value.line, None, value.rank)


def step_in(text: str) -> int | None:
    """The step that a line names."""
    if step := COUNTER.search(text):
        return int(step["at"])
    short = _SHORT_STEP.search(text)
    return int(short[1]) if short else step_of_total(text)


def step_of_total(text: str) -> int | None:
    """The step that a line begins with; None: it begins with something else."""
    match = _AT_OF.match(text)
    return int(match["at"]) if match and int(match["at"]) <= int(match["of"]) else None


def _seconds(match: re.Match[str]) -> str:
    return f"{float(match['value']) / (1000 if match['unit'] == 'ms' else 1):.6g}"
