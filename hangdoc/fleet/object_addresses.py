"""Where objects lie in a rank's memory, as small numbers: what many ranks have alike is then equal on all of them."""

from __future__ import annotations

import re
from dataclasses import replace

from hangdoc.evidence import Variable
from hangdoc.fleet.numbering import Numbers

PLAIN = frozenset({"none", "bool", "int", "float", "str"})  # where such values lie says nothing
ADDRESS = re.compile(r"(?<= at 0x)[0-9a-f]{6,16}\b")  # as the text of an object has it: `<AdamW at 0x7f5642032690>`

Objects = Numbers[int]  # of one process, by address: what lies at one that was forgotten may be another object


def numbered(variable: Variable, objects: Objects, answer: int) -> Variable:
    """A variable with numbers in place of addresses."""
    if variable.kind in PLAIN:
        return replace(variable, address=None)
    address = None if variable.address is None else objects.of(variable.address, answer)
    text = ADDRESS.sub(lambda found: f"{objects.of(int(found[0], 16), answer):x}", variable.text)
    return replace(variable, text=text, address=address)
