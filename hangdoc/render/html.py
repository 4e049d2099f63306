"""A report as one self-contained HTML page, without scripts or external resources, for screen, phone and paper."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hangdoc import __version__
from hangdoc.formatting import name_ranks, name_runs, percent, seconds, size
from hangdoc.incident.incident import Incident
from hangdoc.postmortem.assemble import UNKNOWN_HOST
from hangdoc.render import svg
from hangdoc.render.rank_groups import WAITING, culprit_groups, fold, hosts_text, name
from hangdoc.render.sanitize import clean
from hangdoc.render.verdict_text import job_name, job_text, link_texts, unseen_texts
from hangdoc.verdict import CONFIDENCES, STATUSES, Finding

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

WORDS = frozenset((*STATUSES, *CONFIDENCES))  # also class names in the style sheet
LONGEST = 400  # characters per text
MAX_GROUPS = 12
MAX_ROWS = 24
MAX_FILES = 500
MAX_NAMED = 200  # characters


def page(incidents: Sequence[Incident]) -> str:
    """All jobs of a report as one HTML page."""
    return _environment().get_template("report.html.j2").render(incidents=list(incidents), version=__version__)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("hangdoc.render", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_sanitized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        prose=_prose,
        parts=lambda text: [part for part in re.split(r" {2,}", clean(text, LONGEST)) if part],
        duration=lambda value: "" if value is None else seconds(value),
        size=lambda value: "" if value is None else size(value),
        percent=lambda value: "" if value is None else percent(value),
        path=_path,
        ago=_ago,
        clock=_clock,
        phase=svg.phase_class,
        members=name,
        hosts=_hosts,
        end=_end,
        ranks=name_ranks,
        runs=name_runs,
        fold=fold,
        links=link_texts,
        unseen=unseen_texts,
        job_name=job_name,
        job_text=job_text,
        waits=lambda phase: phase in WAITING,
        word=lambda text: text if text in WORDS else "unknown",
    )
    environment.globals.update(
        grid=svg.grid,
        bars=svg.bars,
        ticks=svg.ticks,
        phases=svg.shown_phases,
        culprits=culprit_groups,
        victims=_victims,
        most_groups=MAX_GROUPS,
        most_rows=MAX_ROWS,
        most_files=MAX_FILES,
    )
    return environment


def _sanitized(value: Any) -> Any:
    """Every text of the template passes here before escaping: removes hostile characters, limits the length."""
    return clean(value, LONGEST) if type(value) is str else value


def _path(text: str) -> Markup:
    """An SVG path of our own, without a length limit."""
    from markupsafe import Markup, escape

    return Markup(escape(text))


def _prose(text: str) -> Markup:
    """A sentence; text between backticks becomes code."""
    from markupsafe import Markup, escape

    words = clean(text, 2 * LONGEST).split("`")
    if len(words) % 2 == 0:  # an unbalanced backtick
        return Markup(escape("`".join(words)))
    return Markup("").join(
        Markup("<code>{}</code>").format(word) if i % 2 else escape(word) for i, word in enumerate(words)
    )


def _ago(age_s: float) -> str:
    """`−13 s`."""
    return f"−{seconds(abs(age_s))}" if round(age_s, 1) else "0"


def _clock(at: float | None) -> str:
    """`2026-11-21 03:29:31`, in UTC."""
    try:
        return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M:%S}" if at is not None else ""
    except (ValueError, OverflowError, OSError):
        return ""


def _end(path: str) -> str:
    """`…/attempt_0/rank3.log`: the last two parts of a path."""
    parts = path.split("/")
    return path if len(parts) <= 2 else "/".join(["…", *parts[-2:]])


def _hosts(hosts: Sequence[str]) -> str:
    text = hosts_text(host for host in hosts if host != UNKNOWN_HOST)
    return text if len(text) <= MAX_NAMED else f"{len(hosts)} hosts"


def _victims(finding: Finding, incident: Incident) -> list[Any]:
    """Groups of the ranks that are not culprits."""
    blamed = {(culprit.host, culprit.pid) for culprit in finding.culprits}
    return fold(line for line in incident.verdict.job.ranks if (line.host, line.pid) not in blamed)
