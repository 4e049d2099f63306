"""A hosts file: which of its lines name a host."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from hangdoc.redaction.text import redact_text

HOSTS = "/etc/hosts"
MOST = 1 << 20  # bytes of one that are read: it is a text of the target's
LONGEST = 160  # characters of a line that are kept


def naming(text: str, name: str) -> Iterator[tuple[str, int, str]]:
    """Address, number and text of the lines that name `name`."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if name.lower() in (word.lower() for word in words[1:]):
            try:
                yield str(ipaddress.ip_address(words[0].split("%")[0])), number, redact_text(" ".join(words))[:LONGEST]
            except ValueError:
                continue
