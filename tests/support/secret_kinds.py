"""The kinds of secrets in `tests/data/secrets.yaml`, and the check that a text leaks none."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import yaml

from tests.support.paths import DATA

SECRETS = DATA / "secrets.yaml"
PIECE = 8  # characters: so much of a secret in a row is a leak; of a shorter one all of it


@dataclass(frozen=True, slots=True)
class Kind:
    """A secret where it is met."""

    kind: str
    place: str  # source | argv | environ | local | log | url | path
    secret: str
    text: str  # holds the secret; empty for argv
    words: tuple[str, ...]  # of argv
    name: str  # of the variable, for environ and local


@cache
def kinds(*places: str) -> tuple[Kind, ...]:
    """Those of some places; all of them without."""
    found = []
    for one in yaml.safe_load(SECRETS.read_text()):
        secret = "".join(one["pieces"])
        text, *words = [_filled(text, secret) for text in (one.get("text", ""), *one.get("words", ()))]
        found.append(Kind(one["kind"], one["place"], secret, text, tuple(words), one.get("name", "")))
    return tuple(kind for kind in found if not places or kind.place in places)


def leaks(shown: str, among: tuple[Kind, ...] | None = None) -> list[str]:
    """The kinds of which a part is shown, each with that part."""
    found = ((one.kind, _part(one.secret, shown)) for one in (kinds() if among is None else among))
    return [f"{kind}: {part}" for kind, part in found if part]


def _part(secret: str, shown: str) -> str | None:
    # As JSON and HTML have it, too: neither escapes the letters of a piece, but for quotes and backslashes.
    parts = [secret[at : at + PIECE] for at in range(max(1, len(secret) - PIECE + 1))]
    # Eight digits occur by chance in a recording: it holds 100,000 of them.
    telling = [part for part in parts if not part.isdecimal()] or [secret]
    return next((part for part in telling if part in shown), None)


def _filled(text: str, secret: str) -> str:
    return text.replace("{{", "\0").replace("}}", "\1").replace("{}", secret).replace("\0", "{").replace("\1", "}")
