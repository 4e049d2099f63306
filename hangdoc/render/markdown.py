"""A verdict as a ticket in Markdown, under 60 lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hangdoc import __version__
from hangdoc.formatting import seconds
from hangdoc.render.rank_groups import WAITING, culprit_groups, fold, name
from hangdoc.render.sanitize import clean
from hangdoc.render.verdict_text import file_text, files_text, job_text, link_texts, unseen_texts
from hangdoc.verdict import Family, Finding, Job, Verdict

if TYPE_CHECKING:
    from hangdoc.incident.incident import File

MAX_ITEMS = 5  # items of a list; twice as many for evidence
MAX_FILES = 3
MAX_TEXT = 300  # characters of a file name or a problem

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&$])")


def document(verdicts: Sequence[Verdict], files: Sequence[File] = (), problems: Sequence[str] = ()) -> str:
    """All verdicts, one ticket after the other, each with its source files and read problems."""
    return "\n---\n\n".join(ticket(verdict, files, problems) for verdict in verdicts)


def ticket(verdict: Verdict, files: Sequence[File] = (), problems: Sequence[str] = ()) -> str:
    """One verdict as a ticket."""
    age = f" {seconds(verdict.stalled_for_s)}" if verdict.stalled_for_s is not None else ""
    first = verdict.findings[0] if verdict.findings else None
    job = verdict.job
    lines = [
        f"# {verdict.status.upper()}{age}" + (f": {escape(first.title)}" if first else ""),
        "",
        f"Job {escape(job.id)}, {job_text(job)}" + (f", started by {escape(job.launcher)}." if job.launcher else "."),
    ]
    if verdict.note:
        lines += ["", escape(verdict.note)]
    lines += _section("What differs between the ranks", map(escape, verdict.differences), MAX_ITEMS)
    if first:
        lines += _finding(first, job)
    elif verdict.status != "healthy":
        groups = [f"{escape(g.name)}: {escape(g.what)} {code(g.site)}".rstrip() for g in fold(job.ranks)]
        lines += _section("What the ranks do", groups, MAX_ITEMS)
    lines += _section("What is known", map(escape, verdict.understood), MAX_ITEMS)
    lines += _section("What it may be", map(_family, verdict.families), MAX_ITEMS)
    lines += _section("Also possible", (_other(f) for f in verdict.findings[1:]), MAX_ITEMS // 2)
    lines += _section("Could not see", map(escape, unseen_texts(verdict.unseen)), MAX_ITEMS // 2)
    lines += _sources(files, problems)
    return "\n".join([*lines, "", f"hangdoc {__version__}", ""])


def _sources(files: Sequence[File], problems: Sequence[str]) -> list[str]:
    lines = []
    if files:
        shown = [f"{code(_short(file.name))} ({escape(file_text(file))})" for file in files[:MAX_FILES]]
        more = f" and {len(files) - MAX_FILES} more" if len(files) > MAX_FILES else ""
        lines += ["", f"Based on {escape(files_text(files))}: {', '.join(shown)}{more}."]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        lines += ["", f"Could not read: {escape(_short(problems[0]))}{more}"]
    return lines


def _short(text: str) -> str:
    return clean(text, MAX_TEXT)


def _finding(finding: Finding, job: Job) -> list[str]:
    blamed = {(c.host, c.pid) for c in finding.culprits}
    who = [
        f"culprit: **{escape(g.name)}** {escape(g.what)} {code(g.site)} {escape(g.where)}"
        for g in culprit_groups(finding.culprits, job)
    ]
    who += [f"link: {escape(' '.join(parts).strip())}" for parts in link_texts(finding.links)]
    who += [
        f"{'waiting' if g.phase in WAITING else 'others'}: {escape(g.name)} {escape(g.what)} {code(g.site)}"
        for g in fold(line for line in job.ranks if (line.host, line.pid) not in blamed)
    ]
    kind = f"`{clean(finding.playbook)}` ({escape(finding.cls)}, {escape(finding.confidence)} confidence)"
    return [
        "",
        f"{escape(finding.summary)} {kind}",
        *_section("Who", (re.sub(" +", " ", line).rstrip() for line in who), MAX_ITEMS),
        *_section("Why", (escape(proof.text) for proof in finding.evidence), 2 * MAX_ITEMS),
        *_section("What to do", map(escape, finding.actions), MAX_ITEMS, numbered=True),
        "",
        f"More: `hangdoc runbook {clean(finding.playbook)}`",
    ]


def _other(finding: Finding) -> str:
    culprits = f" Culprit: {escape(name((c.rank, c.pid) for c in finding.culprits))}." if finding.culprits else ""
    return f"`{clean(finding.playbook)}` ({escape(finding.confidence)} confidence): {escape(finding.summary)}{culprits}"


def _family(family: Family) -> str:
    reasons = [("for", family.speaks_for), ("against", family.against), ("decide", (family.decides,))]
    told = [f"{label}: {escape('; '.join(texts))}" for label, texts in reasons if any(texts)]
    return "; ".join([f"**{escape(family.cls)}**: {escape(family.title)}", *told])


def _section(title: str, items: Iterable[str], most: int, numbered: bool = False) -> list[str]:
    texts = list(items)
    if not texts:
        return []
    listed = [f"{f'{i}.' if numbered else '-'} {item}" for i, item in enumerate(texts[:most], 1)]
    if len(texts) > most:
        listed.append(f"- and {len(texts) - most} more")
    return ["", f"## {title}", "", *listed]


def escape(text: str) -> str:
    """Text of a target as literal Markdown."""
    return _SPECIAL.sub(r"\\\1", clean(text))


def code(text: str) -> str:
    """A code span that its content cannot close."""
    shown = clean(text).replace("`", "'")
    return f"`{shown}`" if shown else ""
