"""The names of the rule-engine library that hangdoc uses, imported with the library's parser tables.

The library has PLY compute the tables of its grammar at every import, which takes 0.3 s: a third of what all playbooks
take to load. PLY first looks for a module `parsetab` beside the grammar (ply/yacc.py: LRTable.read_table), which the
library does not ship. So hangdoc does: `parser_tables.json`, written by `python -m tests.tools.parser_tables`. PLY
compares the grammar that belongs to it; for a release of the library with another grammar, it computes the tables.
"""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from types import ModuleType

MODULE = "rule_engine.parser.parsetab"  # as PLY calls it
TABLES = "parser_tables.json"


def _tables() -> ModuleType:
    """The module that PLY would have written."""
    stored = json.loads(files("hangdoc.rules").joinpath(TABLES).read_text())
    module = ModuleType(MODULE)
    vars(module).update(
        _tabversion=stored["version"],
        _lr_method=stored["method"],
        _lr_signature=stored["grammar"],
        _lr_action={int(state): row for state, row in stored["action"].items()},
        _lr_goto={int(state): row for state, row in stored["goto"].items()},
        _lr_productions=[tuple(production) for production in stored["productions"]],
    )
    return module


sys.modules.setdefault(MODULE, _tables())

from rule_engine import Context, DataType, Rule, ast, builtins, errors  # noqa: E402

__all__ = ["Context", "DataType", "Rule", "ast", "builtins", "errors"]
