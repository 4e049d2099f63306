"""The items of a list or tuple in another process."""

from __future__ import annotations

from hangdoc.introspect.objects import Objects


def items(objects: Objects, address: int, most: int) -> list[int]:
    """Addresses of the first items of a list or tuple; none of anything else. Raises Unreadable."""
    head = objects.heads([address]).get(address)
    if head is None or head[0].name not in ("list", "tuple"):
        return []
    count = min(int.from_bytes(head[1][16:24], "little", signed=True), most)
    start = int.from_bytes(head[1][24:32], "little") if head[0].name == "list" else address + 24
    return list(objects.memory.words(start, count)) if count > 0 else []
