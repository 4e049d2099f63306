"""Run a benchmark; with `--write PAGE`, put what it printed into its section of that page.

    python -m tests.benchmarks.publish [--write docs/benchmarks.md] NAME [ARGUMENT ...]

NAME is a module of this package, or a tool such as `matrix`. Its section lies between `<!-- bench:NAME -->` and
`<!-- /bench:NAME -->`; nothing else on the page changes. The exit code is that of the benchmark.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

import psutil

from hangdoc import __version__
from tests.support.paths import ROOT

TOOLS = ("matrix", "calm", "pasted", "learn_terms", "learn_signs")  # benchmarks outside this package
PACKAGES = ("torch", "py-spy")  # their versions change the results


class SectionError(ValueError):
    """The page has no section of this name, or more than one."""


def replace_section(page: str, name: str, body: str) -> str:
    """The page with this body in section `name`; raises SectionError."""
    start, end = f"<!-- bench:{name} -->\n", f"<!-- /bench:{name} -->"
    if page.count(start) != 1 or page.count(end) != 1 or page.index(start) > page.index(end):
        raise SectionError(f"the page needs exactly one section {start.strip()} ... {end}")
    return f"{page[: page.index(start)]}{start}{body.strip()}\n{page[page.index(end) :]}"


def section(command: Sequence[str], output: str, code: int) -> str:
    """The body of a section: when, with what and where it was measured, and what the benchmark printed."""
    shown = output.strip() if re.search(r"^\|", output, re.MULTILINE) else f"```text\n{output.strip()}\n```"
    parts = [
        f"Measured {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC with `{shlex.join(command)}`.",
        machine(),
        shown,
    ]
    if code:
        parts.append(f"**The benchmark exited with code {code}: it missed a limit or gave a wrong answer.**")
    return "\n\n".join(parts)


def machine() -> str:
    """Versions and hardware, as one sentence."""
    packages = "".join(f", {name} {version(name)}" for name in PACKAGES)
    models = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    processor = f"{len(os.sched_getaffinity(0))} cores" + (f" of {models[0]}" if models else "")
    memory = f"{psutil.virtual_memory().total / 2**30:.0f} GiB of memory"
    return (
        f"hangdoc {__version__}, Python {platform.python_version()}{packages}, Linux {platform.release()}; "
        f"{processor}, {memory}, load average {os.getloadavg()[0]:.1f} at the end."
    )


def run(name: str, arguments: Sequence[str]) -> tuple[int, str]:
    """Run a benchmark, and echo its standard output; returns its exit code and that output."""
    module = f"tests.tools.{name}" if name in TOOLS else f"tests.benchmarks.{name}"
    printed = []
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the benchmark; what it printed by then is kept
        for line in process.stdout or ():
            print(line, end="", flush=True)
            printed.append(line)
    return process.returncode, "".join(printed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="the page whose section is replaced")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT")
    given = parser.parse_args()
    if given.write:
        replace_section(given.write.read_text(), given.name, "")  # refuse before an hour of measuring
    code, output = run(given.name, given.arguments)
    if given.write and output.strip():
        body = section(("python", "-m", "tests.benchmarks.publish", given.name, *given.arguments), output, code)
        given.write.write_text(replace_section(given.write.read_text(), given.name, body))
    return code


if __name__ == "__main__":
    sys.exit(main())
