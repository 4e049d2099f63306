"""Ranks at a prompt, from frames and from calls on terminals."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from hangdoc.analysis.data.prompts import PromptFacts
from hangdoc.evidence import ChildProcess, FileCall, Io, Process
from tests.support.synthetic_evidence import LIB, At, Stage, in_c10d

SCRIPT = """\
import sys
import subprocess

def publish():
    answer = input("publish? ")
    line = sys.stdin.readline()
    subprocess.run(["git", "push"])
    torch.distributed.barrier()
"""
STDLIB = "/usr/lib/python3.11"
ASKS, READS, RUNS, MEETS = (("publish", line) for line in (5, 6, 7, 8))
IN_PDB = [("cmdloop", f"{STDLIB}/cmd.py"), ("_cmdloop", f"{STDLIB}/pdb.py"), ("interaction", f"{STDLIB}/pdb.py")]
IN_IPDB = [
    ("result", f"{STDLIB}/concurrent/futures/_base.py"),
    ("cmdloop", "/v/lib/python3.11/site-packages/IPython/terminal/debugger.py"),
    *IN_PDB[1:],
]
IN_DEBUGPY = [
    ("wait", f"{STDLIB}/threading.py"),
    ("_do_wait_suspend", "/v/lib/python3.11/site-packages/debugpy/_vendored/pydevd/pydevd.py"),
]
IN_IPYTHON = [("interact", "/v/lib/python3.11/site-packages/IPython/terminal/interactiveshell.py")]
IN_KERNEL = [("start", "/v/lib/python3.11/site-packages/ipykernel/kernelapp.py")]
IN_RUN = [("wait", f"{STDLIB}/subprocess.py"), ("run", f"{STDLIB}/subprocess.py")]
READ = FileCall(100, 100, "read", "/dev/pts/3", "terminal", "S", fd=0)
POLL = structs.replace(READ, call="poll")
OF_GIT = structs.replace(READ, pid=900, tid=900, path="/dev/tty", fd=3)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("stage"))


def prompt(stage: Stage, at: At, *calls: FileCall, of: At | None = None) -> PromptFacts:
    """The prompt of the first of two ranks; the other waits in a barrier."""
    first = replace(at, records={"io": Io(calls=calls), **at.records})
    return stage.facts([first, of or in_c10d("barrier", MEETS)]).ranks[0].prompt


@pytest.mark.parametrize(
    ("at", "calls", "kind", "terminal"),
    [
        (At([ASKS], IN_PDB), [POLL], "debugger", "/dev/pts/3"),
        (At([ASKS], IN_PDB), [], "debugger", None),  # its input is no terminal
        (At([ASKS], [(name, file.rpartition("/")[2]) for name, file in IN_PDB]), [], "debugger", None),  # a pasted dump
        (At([ASKS], IN_IPDB), [structs.replace(POLL, tid=103)], "debugger", "/dev/pts/3"),  # another thread reads
        (At([ASKS], IN_DEBUGPY), [], "debugger client", None),
        (At([ASKS], IN_IPYTHON), [], "interpreter", None),
        (At([ASKS], [("interact", f"{STDLIB}/code.py")]), [READ], "interpreter", "/dev/pts/3"),
        (At([ASKS], [("_raw_input", f"{STDLIB}/getpass.py")]), [READ], "no echo", "/dev/pts/3"),
        (At([ASKS]), [READ], "input", "/dev/pts/3"),
        (At([ASKS]), [POLL], "input", "/dev/pts/3"),
        (At([READS]), [READ], "read", "/dev/pts/3"),
        (At([READS]), [structs.replace(READ, kind="device")], "read", "/dev/pts/3"),  # as older recordings have it
    ],
)
def test_a_prompt(stage: Stage, at: At, calls: list[FileCall], kind: str, terminal: str | None) -> None:
    found = prompt(stage, at, *calls)
    assert (found.kind, found.terminal, found.pid, found.helper, found.stuck) == (kind, terminal, 100, None, True)


@pytest.mark.parametrize(
    ("at", "calls"),
    [
        (At([ASKS]), []),
        (At([ASKS]), [structs.replace(READ, path="pipe:[4711]", kind="pipe")]),  # data or requests
        (At([ASKS]), [structs.replace(READ, path="/dev/ptmx", kind="device")]),  # the end of a program
        (At([ASKS]), [structs.replace(READ, call="write", writes=True)]),  # a terminal that shows no more lines
        (At([ASKS]), [structs.replace(READ, tid=103)]),  # another thread takes commands
        (in_c10d("barrier", MEETS), [READ]),
        (At([ASKS], state="T"), [READ]),  # stopped there, as background processes are
        (At([ASKS], [("interact", "/home/me/code.py")]), []),  # a script of that name
        (At([ASKS], IN_KERNEL), []),
        (At([RUNS], [("interaction", f"{LIB}/nn/modules/pdb.py")], state="R"), []),
    ],
)
def test_no_prompt(stage: Stage, at: At, calls: list[FileCall]) -> None:
    assert prompt(stage, at, *calls) == PromptFacts()


def test_a_terminal_that_steers_a_thread_which_computes_is_no_prompt(stage: Stage) -> None:
    at = [At([ASKS], cpu_s=n * 1.0, records={"io": Io(calls=(READ,))}) for n in range(4)]
    facts = stage.facts(*[[one] for one in at])
    assert facts.ranks[0].prompt == PromptFacts()


def test_a_program_that_the_rank_waits_for_asks(stage: Stage) -> None:
    def at(inner: list[tuple[str, str]]) -> At:
        git = ChildProcess(900, "git", ("git", "push"), "S", 0.1)
        cpu = Process(100, 1, 0, "S", ("python",), None, None, 10.0, 1.0, 1, (), children=(git,))
        return At([RUNS], inner, records={"cpu": cpu})

    found = prompt(stage, at(IN_RUN), OF_GIT)
    assert (found.kind, found.terminal, found.pid, found.helper) == ("read", "/dev/tty", 900, "git")
    assert prompt(stage, at([]), OF_GIT) == PromptFacts()


def test_of_an_ended_job_the_line_decides(stage: Stage) -> None:
    """No call was seen: only the last stack of each rank is left."""
    last, other = (stage.facts([At([at]), in_c10d("barrier", MEETS)]).ranks[0].prompt for at in (ASKS, READS))
    assert (last.kind, last.terminal, last.stuck) == ("input", None, True)
    assert other == PromptFacts()
