"""The parser tables that hangdoc ships for the rule-engine library."""

from __future__ import annotations

import json
import subprocess
import sys

from hangdoc.rules.engine import Rule
from tests.support.paths import ROOT
from tests.tools import parser_tables

# What PLY makes of a table that it has read, and of one that it has computed.
READ, COMPUTED = "MiniProduction", "Production"
RULE = "Rule('a.b > 1 and not c').evaluate({'a': {'b': 2}, 'c': 0})"
SHOW = f"print(type(Rule.parser._parser.productions[1]).__name__, {RULE})"


def shown(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_tables_are_those_of_the_grammar() -> None:
    """Of another release's grammar, the library computes them itself: run `python -m tests.tools.parser_tables`."""
    stored, made = json.loads(parser_tables.PATH.read_text()), parser_tables.tables()
    assert stored["grammar"] != made["grammar"] or stored == json.loads(json.dumps(made))
    assert Rule("1 + 2 * 3").evaluate({}) == 7


def test_import_reads_the_tables() -> None:
    assert shown(f"from hangdoc.rules.engine import Rule; {SHOW}") == [READ, "True"]


def test_tables_of_another_grammar_are_not_used() -> None:
    other = "import sys, types; m = sys.modules['rule_engine.parser.parsetab'] = types.ModuleType('parsetab')"
    empty = "m._tabversion = '3.10'; m._lr_method = 'LALR'; m._lr_signature = 'x'; m._lr_action = m._lr_goto = {}"
    lines = f"{other}; {empty}; m._lr_productions = []; from hangdoc.rules.engine import Rule; {SHOW}"
    assert shown(lines) == [COMPUTED, "True"]
