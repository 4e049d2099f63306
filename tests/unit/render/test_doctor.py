from __future__ import annotations

from hangdoc.doctor.checks import Check
from hangdoc.render.doctor import show
from tests.support.verdicts import HOSTILE, MakeConsole, written


def test_one_line_a_check_and_one_a_fix(console: MakeConsole) -> None:
    made = console(100)
    checks = [
        Check("py-spy", True, "0.4.3"),
        Check("yama", False, "refuses", "sysctl kernel.yama.ptrace_scope=0"),
        Check("ssh", None, "no hosts asked for"),
    ]
    show(checks, made)
    assert written(made).splitlines() == [
        "ok  py-spy  0.4.3",
        "no  yama    refuses",
        "      fix: sysctl kernel.yama.ptrace_scope=0",
        "-   ssh     no hosts asked for",
    ]


def test_narrow_and_hostile(console: MakeConsole) -> None:
    made = console(40)
    show([Check(HOSTILE[:40], False, HOSTILE, HOSTILE)], made)
    lines = written(made).splitlines()
    assert max(map(len, lines)) <= 40
    assert "\x1b" not in written(made)
