"""What a person says of the job as a whole: "it always hangs at the end of an epoch", "nothing for half an hour".

Who pastes the last lines of a hung job rarely has a timeout among them. That the job stands still makes small
differences between its ranks count: without it, the ranks may just have been caught in mid-step. Lines of logs say
nothing here, nor do conditions and questions.
"""

from __future__ import annotations

import re

from hangdoc.evidence.logs import LogEvent
from hangdoc.redaction.text import redact_text

KIND = "said_stuck"
SEVERAL_JOBS = "several_jobs"
MAX_TEXT = 64 * 2**10  # characters: a person writes less
MAX_LINE = 600
_STANDS = re.compile(
    r"\b(?:hangs?|hung|hanging|stuck|freezes|froze|frozen|stalls|stalled)\b(?! up\b)"
    r"|\b(?:stops?|stopped|ends?) (?:here|there|moving|dead|forever)\b|^\W{0,4}(?:and )?(?:this time )?forever\b"
    r"|\b(?:nothing|silence|no (?:more )?(?:output|lines?|prints?|progress))\b.{0,30}?\b"
    r"(?:happens|moves|comes|for (?:\w{1,8} ){0,3}(?:hours?|min(?:ute)?s?|h|days?)|since|any ?more|after th(?:at|is))\b"
    r"|\bno (?:further|new|more) (?:records?|entries|messages?|lines?|output)\b"
    r"|\bnothing (?:was|is|has been|gets) (?:added|written|printed|logged)\b"
    r"|\b\d{1,4} ?(?:h|hours?|min(?:ute)?s?|days?)"
    r" (?:of (?:silence|nothing)|without (?:an? |any )?(?:line|output|progress))\b"
    r"|\b(?:been|sits|sitting|standing|stands|waiting) (?:like (?:this|that) )?(?:t?here )?(?:for|since)\b"
    r"|\b(?:see|get|prints?|shows?|have) (?:\w{1,8} ){0,3}nothing (?:more|else)\b"
    r"|\bjust (?:sits|stays|waits|stands)\b|\b(?:stays|remains) (?:like (?:this|that)|t?here)\b"
    r"|\bbeen like (?:this|that)\b|\bthen nothing\b"
    r"|\bthat'?s (?:it|all),? (?:until|since|for (?:\w{1,8} ){0,3}(?:hours?|min(?:ute)?s?|h|days?))\b",
    re.IGNORECASE,
)
_OTHERWISE = re.compile(
    r"[?=#$%>]|\bno\b(?! (?:(?:further|new|more) )?(?:records?|entries|messages?|lines?|output|prints?|progress)\b)"
    r"|\bwithout\b(?! (?:an? |any )?(?:line|output|progress)\b)"
    r"|\b(?:not|never|n't|if|unless|when|whenever|would|could|may|might|used to|no longer"
    r"|last (?:week|month|time)|yesterday|earlier|fixed|avoid|prevents?|timeout|watchdog|detect\w{0,4}|ask\w{0,3}"
    r"|whether|something|nothing (?:hangs|is stuck)|potential\w{0,2}|is(?:n't| not) a hang)\b",
    re.IGNORECASE,
)
# Slurm's default name of a job's output, and its name of a step.
_OF_JOB = re.compile(r"\bslurm-(\d{2,12})(?:_\d{1,6})?\.(?:out|err|log)\b|\bStepId=(\d{2,12})\b")
_CLAUSE = re.compile(r"[.;!,] ")
_LOGGED = re.compile(
    r"\d\d:\d\d:\d\d|\b(?:INFO|WARN|WARNING|ERROR|DEBUG|Traceback|File \")|^\W{0,4}r(?:ank)?[ _:]?\d|\[\w{1,20}\]:"
)


def said_stuck(content: str, source: str) -> LogEvent | None:
    """The first line by which a person says that the job stands still; None: nobody does."""
    if len(content) > MAX_TEXT:
        return None
    for number, text in enumerate(content.split("\n"), 1):
        if len(text) > MAX_LINE or not _STANDS.search(text) or _LOGGED.search(text):
            continue
        if any(_STANDS.search(part) and not _OTHERWISE.search(part) for part in _CLAUSE.split(text)):
            return LogEvent(KIND, redact_text(text.strip()), source, number)
    return None


def several_jobs(content: str, source: str) -> LogEvent | None:
    """The Slurm jobs of a text, if it has the output of several."""
    if len(content) > MAX_TEXT:
        return None
    jobs = sorted({first or second for first, second in _OF_JOB.findall(content)})
    return LogEvent(SEVERAL_JOBS, ", ".join(jobs[:4]), source, 1) if len(jobs) > 1 else None
