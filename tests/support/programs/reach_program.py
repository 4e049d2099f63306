"""Objects with attributes in each of CPython's layouts; prints their addresses."""

import json
import time


class Token:
    pass


class Plain:  # values of its own, or a dict
    def __init__(self, kept):
        self.number = 1
        self.kept = kept


class Slotted:
    __slots__ = ("kept",)

    def __init__(self, kept):
        self.kept = kept


def materialised(kept):
    plain = Plain(kept)
    plain.__dict__["more"] = 2  # from now on it has a real dict
    return plain


objects = {
    "plain": Plain(Token()),
    "slotted": Slotted(Token()),
    "dict": materialised(Token()),
}
said = {kind: (id(one), id(one.kept)) for kind, one in objects.items()}
listed = [Token(), Token()]
said["list"] = (id(listed), id(listed[1]))
nested = Plain(Slotted(Token()))
said["nested"] = (id(nested), id(nested.kept.kept))
print(json.dumps(said), flush=True)
time.sleep(60)
