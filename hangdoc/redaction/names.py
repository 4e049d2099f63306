"""Judges by the name of a variable, option or key whether its value is a secret; and which values cannot be one."""

from __future__ import annotations

import re
from functools import lru_cache

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Names of secrets only. Their value may be a number.
_CERTAIN = (
    r"passw|passphrase|passcode|pswd|(?:^|_)(?:pwd|pw)(?:$|_)|secret|credential|creds(?:$|_)|mnemonic|seed_?phrase|contrase[nñ]a"
    r"|(?:api|access|private|secret|encryption|signing|account|master|shared|subscription|storage|license|service"
    r"|consumer|client|auth|deploy|admin|instrumentation|integration|ingest|routing|write|session|host)_?key(?!w|e)"
    r"|connection_?string|conn_?str(?:$|_)|webhook"
)
# Names that may also mean a token of text or the key of a mapping.
_LIKELY = (
    r"token(?!i[sz])|bearer|cookie|jwt|(?:^|_)sas(?:$|_)"
    r"|(?:^|_)(?:auth|authorization|key|keys|pass|pat)(?:$|_)"
)
# Attributes of a secret, not the secret: `token_type`, `credentials_file`.
_ABOUT = re.compile(
    r"(?:_|^)(?:file|files|path|dir|folder|name|names|type|types|count|counts|len|length|lengths|ttl|expir\w*|size|dim|idx"
    r"|index|indices|ids|format|provider|loader|dropout|rate|limit|budget|class|cls|mask|weight|weights|bias|proj|states?"
    r"|cache|padding\w*|embed\w*|stdin|prompt|policy|required|error|mode)$|(?:^|_)(?:num|n|max|min|total|count|len|per)_",
    re.IGNORECASE,
)
_NAME = re.compile(f"(?P<certain>{_CERTAIN})|{_LIKELY}", re.IGNORECASE)

_VALUE = r"<[\w.]+(?: object)? at 0x[0-9a-f]+>|<redacted>|None|True|False|true|false|null|nil|undefined"
_NOTHING = re.compile(
    rf"(?:{_VALUE}|[\"']{{0,6}}|\*+|\.\.\.|…|x{{3,}}|\(\)|\[\]|\{{\}}|\[?redacted\]?|\*+REDACTED\*+)", re.I
)
_PLACEHOLDER = re.compile(
    r"""[rbfu]{0,2}["']?(?:\$\{\w+\}|\$\w+|\$\([^)]*\)|\{[\w.!:\[\]]*\}|%\(\w+\)s|%s|<[a-z][\w -]*>)["']?""",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"[-+~]?(?:\d[\d.,_]*(?:e[-+]?\d+)?|inf|nan)(?:\s?[A-Za-z%/]{1,3}(?:/[a-z]{1,5})?)?", re.IGNORECASE
)
_FEW_DIGITS = re.compile(r"[-+]?\d{1,3}(?:\.\d*)?")
# Tensors and containers as probes print them, lists of numbers, and layer names.
_DATA = re.compile(
    r"\w*(?:Tensor|Parameter)\(\[[\d, ]*\], [\w, .:]+\)?|(?:\w+) of \d+|[\[(][-+\d., e]*(?:\.\.\.)?[\])]?"
    r"|<[\w.]+(?: [\w.]+)*>|[\"']?[A-Za-z_]\w{0,30}(?:\.[A-Za-z_0-9]\w{0,30}){2,}[\"']?|[a-z_]{2,30}\.[a-z_]{2,30}"
)
_PATH = re.compile(r"""["']?(?:~|\.{1,2})?/[\w.@+-]*(?:/[\w.@+-]*)*["']?""")


@lru_cache(maxsize=4096)
def secrecy(name: str) -> int:
    """2: the value is a secret, even if it is a number; 1: a secret unless it looks like data; 0: not a secret."""
    if len(name) > 200:
        name = name[-200:]
    plain = _CAMEL.sub("_", name).replace("-", "_").replace(".", "_").replace(" ", "_")
    found = [match for match in (_NAME.search(plain), _NAME.search(name)) if match]
    if not found or _ABOUT.search(plain):
        return 0
    return 2 if any(match["certain"] for match in found) else 1


def harmless(text: str, level: int) -> bool:
    """True if a value need not be hidden, given the `secrecy` of its name."""
    text = text.strip()
    if not text or _NOTHING.fullmatch(text) or _PLACEHOLDER.fullmatch(text):
        return True
    if level >= 2:
        return bool(_FEW_DIGITS.fullmatch(text) or (text.startswith(("<", "Tensor(")) and _DATA.fullmatch(text)))
    return bool(_NUMBER.fullmatch(text) or _DATA.fullmatch(text) or _PATH.fullmatch(text))
