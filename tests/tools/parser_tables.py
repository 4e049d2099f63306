"""Writes the parser tables of the installed rule-engine library: python -m tests.tools.parser_tables

See `hangdoc.rules.engine`. Run it when the library's grammar has changed: then a test fails.
"""

from __future__ import annotations

import json
from typing import Any

from rule_engine import Rule
from rule_engine._vendor.ply import yacc

from hangdoc.rules.engine import TABLES
from tests.support.paths import ROOT

PATH = ROOT / "hangdoc" / "rules" / TABLES


def tables() -> dict[str, Any]:
    """The tables as PLY would write them for the grammar of the library, without the places in its source."""
    grammar = Rule.parser
    reflected = yacc.ParserReflect({name: getattr(grammar, name) for name in dir(grammar)})
    reflected.get_all()
    table = yacc.yacc(module=grammar, tabmodule="no_such_module", write_tables=False, debug=False)
    return {
        "version": yacc.__tabversion__,
        "method": "LALR",
        "grammar": reflected.signature(),
        "action": {str(state): dict(sorted(row.items())) for state, row in sorted(table.action.items())},
        "goto": {str(state): dict(sorted(row.items())) for state, row in sorted(table.goto.items())},
        "productions": [[one.str, one.name, one.len, one.func, "", 0] for one in table.productions],
    }


if __name__ == "__main__":
    PATH.write_text(json.dumps(tables(), separators=(",", ":")) + "\n")
