"""Secrets out of variables: by the name of the variable, and by the shape of the text."""

from __future__ import annotations

import math
import re
from collections import Counter

HIDDEN = "<redacted>"

_NAME = re.compile(
    r"token(?!i[sz])|secret|passw|passphrase|credential|api_?key|access_?key|private_?key|bearer|cookie|jwt"
    r"|(?:^|_)(?:auth|authorization|key|keys|pwd|pass)(?:$|_)",
    re.IGNORECASE,
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Values that cannot be a secret worth the loss: `num_tokens = 512`, `key = <Tensor at 0x..>`.
_HARMLESS = re.compile(
    r"\s*(?:[-+]?[\d.]+(?:e[-+]?\d+)?|None|True|False|[-+]?inf|nan|<[\w.]+ at 0x[0-9a-f]+>)\s*", re.IGNORECASE
)
_SHAPES = re.compile(
    r"-----BEGIN [^\n]*"
    r"|\bsk-[\w-]{8,}|\bhf_\w{8,}|\bgh[pousr]_\w{8,}|\bgithub_pat_\w{8,}|\bglpat-[\w-]{8,}|\bxox[a-z]-[\w-]{8,}"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{12,}|\bAIza[\w-]{20,}|\bnpm_\w{20,}"
    r"|\beyJ[\w-]{8,}(?:\.[\w-]*)*"
    r"|\b[0-9a-fA-F]{32,}\b"
)
_URL_PASSWORD = re.compile(r"(\b\w{1,20}://[^\s/:@]*:)[^\s/]+@")
_PAIR = re.compile(
    r"""((?:(?:token(?!i[sz])|secret|passw|passphrase|credential|(?:api|access|private)[_-]?key|cookie|auth(?!ors?\b))"""
    r"""[\w-]{0,40})["']?\s*[:=]\s*)"""
    r"""("[^"]*"?|'[^']*'?|(?:(?:Bearer|Basic|Token)\s+)?[^\s"',;&}\])]+)""",
    re.IGNORECASE,
)
_OPTION = re.compile(  # of a command line: `--token abc`
    r"(--[\w-]{0,40}?(?:token(?!i[sz])|secret|passw|passphrase|credential|(?:api|access|private)[_-]?key)[\w-]{0,40}\s+)"
    r"(?!-)(\S+)",
    re.IGNORECASE,
)
_DENSE = re.compile(r"[A-Za-z0-9+/_=-]{32,}")


def redact(name: str, text: str) -> str:
    """`text` without what looks like a secret; all of it hidden where `name` says that it is one.

    Redact before shortening: a cut secret no longer has its shape.
    """
    if _HARMLESS.fullmatch(text):
        return text
    if _NAME.search(_CAMEL.sub("_", name)):
        return HIDDEN
    text = _URL_PASSWORD.sub(rf"\1{HIDDEN}@", text)
    for pattern in (_PAIR, _OPTION):
        text = pattern.sub(lambda pair: pair[0] if _HARMLESS.fullmatch(pair[2]) else pair[1] + HIDDEN, text)
    text = _SHAPES.sub(HIDDEN, text)
    return _DENSE.sub(lambda match: _without_random(match[0]), text)


def _without_random(text: str) -> str:
    """A long run of base64 letters; of what is a path only parts can be secrets."""
    if text.startswith("/") and text.count("/") >= 3:
        return "/".join([HIDDEN if len(part) >= 32 and _random(part) else part for part in text.split("/")])
    return HIDDEN if _random(text) else text


def _random(text: str) -> bool:
    """Whether a long run of base64 letters looks drawn by chance: mixed classes and many different letters."""
    if not (re.search(r"[A-Z]", text) and re.search(r"[a-z]", text) and len(re.findall(r"\d", text)) >= 2):
        return False
    bits = -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())
    return bits >= 4.3
