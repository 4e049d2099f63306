"""Attributes of objects and entries of dicts, on every interpreter, compared with what the process itself prints."""

from __future__ import annotations

from typing import Any

from hangdoc.introspect.instance_dicts import instance_dicts, read_dicts
from hangdoc.introspect.memory import Memory
from hangdoc.introspect.objects import Objects
from tests.support.probe_targets import every_python, started

CODE = """
import collections, json, sys, time

class Part:
    def __init__(self, number):
        self.__dict__["number"] = number
        self.own, self.other = [], {}

class Many(Part):
    def __init__(self, number):
        super().__init__(number)
        for i in range(50):
            setattr(self, f"attribute_{i}", [i])
        del self.attribute_7

parts = [Part(1), Part(2), Many(3)]
for part in parts:
    part.__dict__
dicts = [{}, {1: [], "two": []}, collections.OrderedDict(a=[], b=[]), {f"name_{i}": [] for i in range(300)}]
del dicts[3]["name_5"]
told = {
    "version": sys.version_info[:2],
    "parts": [[id(part), [[id(k), id(v)] for k, v in part.__dict__.items()]] for part in parts],
    "dicts": [[id(d), [[id(k), id(v)] for k, v in d.items()]] for d in dicts],
}
print(json.dumps(told), flush=True)
time.sleep(99)
"""


@every_python
def test_what_the_process_says(python: str) -> None:
    with started("-c", CODE, python=python) as program:
        said: dict[str, Any] = program.said
        version = (said["version"][0], said["version"][1])
        objects = Objects(Memory(program.pid), version)
        wanted = {address: [tuple(pair) for pair in pairs] for address, pairs in said["dicts"]}
        assert read_dicts(objects, version, [*wanted, 8, 2**63, program.said["parts"][0][0]]) == wanted
        parts = {address: [tuple(pair) for pair in pairs] for address, pairs in said["parts"]}
        kinds = {address: kind for address, (kind, _) in objects.heads(parts).items()}
        tables = instance_dicts(objects, version, kinds)
        entries = read_dicts(objects, version, tables.values())
        assert {address: entries[tables[address]] for address in tables} == parts
