"""Print what was said of each job, and the score, at the end."""

from __future__ import annotations

import pytest

from tests.support.frameworks import Job, Said, Score


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows: list[tuple[Job, Said, Score]] = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
        if name == "row"
    ]
    if not rows:
        return
    write = terminalreporter.write_line
    terminalreporter.section("what was said of each job")
    for job, said, scored in rows:
        truth = job.truth
        expected = "healthy" if truth is None else f"{'|'.join(truth.playbooks)} {list(truth.culprits)}"
        write(f"{'right' if scored.right else 'WRONG':6}{job.name:34}{expected:60}{said}")
    write(f"class and culprits  {sum(scored.group and scored.culprits for *_, scored in rows)} of {len(rows)}")
    write(f"and playbook        {sum(scored.right for *_, scored in rows)} of {len(rows)}")
    write(f"wrong with high confidence  {sum(scored.wrong_with_high for *_, scored in rows)}")
    write(f"HEALTHY of a broken job     {sum(scored.healthy_but_broken for *_, scored in rows)}")
