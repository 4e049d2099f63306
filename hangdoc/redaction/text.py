"""Redacts secrets in text: by the name of a value, the token formats of known services, the structure of URLs, command
lines and source code, by entropy, and by the detectors of detect-secrets (`hangdoc/redaction/detectors.py`).

Redact before shortening: a cut secret loses its shape.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from hangdoc.redaction.detectors import CHANGES, bits, changes, hide_detected
from hangdoc.redaction.names import harmless, secrecy
from hangdoc.redaction.token_formats import shapes_in

HIDDEN = "<redacted>"
LONGEST = 16_384  # characters of one text; longer ones are cut
_KEPT = 512  # characters; longer texts are not cached, which keeps the cache below about 5 MB
_CACHED = 4096

# A text with none of these and without a long word contains no secret. Substring search is several times faster than a
# regular expression. The last entries are prefixes of secrets, for secrets that were cut before we saw them.
_HINTS = (
    "pass", "pwd", "pswd", "pw", "secret", "token", "cred", "key", "auth", "bearer", "cookie", "jwt", "://", "@", "sig",
    "mnemonic", "phrase", "conn", "hook", "---", "basic ", "$", "sas", "pat", "login", "code=", " -", "%", "identified",
    "contrase",
    "sk-", "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "glpat", "xox", "npm_", "eyj", "akia", "asia", "akc", "hvs.",
    "_live_", "dop_v1", "sg.", "aiza", "ya29", "shpat",
)  # fmt: skip
_LONG = re.compile(r"[A-Za-z0-9+/_=.~:-]{16,}")
_KERNEL = re.compile(r"(/(?:proc|sys/fs/cgroup)/[\w./@:-]+)")  # kernel paths contain container IDs, no secrets

# --- URLs ------------------------------------------------------------------------------------------
# Up to the last "@", because a password may contain "@", ":" and "/". A port followed by a path is not a password.
_USERINFO = re.compile(r"""([A-Za-z][\w+.-]{0,30}://|(?<![:\w])//)([^\s/:@"'\[\]?#]{0,200}):([^\s"']{1,400})@""")
_CUT_USERINFO = re.compile(
    r"""([A-Za-z][\w+.-]{0,30}://[^\s/:@"'<>\[\]?#]{0,200}:)((?!\d{1,5}\b)[^\s"'<>/:@,)]{1,200}(?:\.\.\.|…|\Z))"""
)
_TOKEN_USER = re.compile(r"""([A-Za-z][\w+.-]{0,30}://)([^\s/:@"'<>]{16,200})@""")
_PORT = re.compile(r"\d{1,5}(?:[/,?#]|\Z)")
_GO_DSN = re.compile(r"""([\w.-]{1,60}:)([^\s"'/]{1,200})(@(?:tcp|unix|udp)\()""")
_BARE_USERINFO = re.compile(
    r"""(?<![\w/.:@-])([A-Za-z][\w.+-]{0,60}:)((?!//)[^\s:@/"'<>,()]{3,100})(@(?!sha\d)[A-Za-z][\w-]*(?:[.:]|\b))"""
)
_QUERY = re.compile(
    r"""([?&;](?:[\w.-]{0,30}(?:sig|signature|token|key|secret|passw\w*|pwd|auth|credential|code|hash|ticket|session)s?"""
    r"""|AWSAccessKeyId|GoogleAccessId)=)([^\s&"'<>;#]+)""",
    re.IGNORECASE,
)

# --- names and values ------------------------------------------------------------------------------
_WORDS = (
    r"(?:token(?!i[sz])|secret|passw|passphrase|passcode|pswd|credential|creds|cookie|jwt|bearer|mnemonic|webhook|contrase[nñ]a"
    r"|connection[_ -]?string|conn[_-]?str|pwd(?![a-z])|(?<![a-z])pw(?![a-z])|auth(?!ors?\b|entic|orit)|authorization"
    r"|(?:api|access|private|secret|encryption|signing|account|master|shared|subscription|storage|license|service"
    r"|consumer|client|deploy|admin|instrumentation|integration|ingest|routing|write|session|host)[_ -]?key(?!w))"
)
_QUOTED = r"""(?:[rbfuRBFU]{0,2}(?:"(?:[^"\\]|\\.){0,4000}"?|'(?:[^'\\]|\\.){0,4000}'?))"""
_LITERALS = rf"{_QUOTED}(?:\s*[+\\]?\s*{_QUOTED})*"
_ESCAPED = r"""(?:\\+["'](?:(?!\\+["'])[^\n]){0,4000}(?:\\+["'])?)"""
_BRACKETS = r"(?:\([^()]{0,2000}\)?|\[[^\[\]]{0,2000}\]?|\{[^{}]{0,2000}\}?)"
_SCHEMES = r"(?:Bearer|Basic|Token|Digest|ApiKey|Negotiate|Bot|Splunk|SSWS|OAuth|AWS4-HMAC-SHA256|GoogleLogin|key)"
_SEPARATOR = (
    r"""(?:\\*["'])?\]?\s*(?::\s*[A-Za-z][\w.\[\]| ]{0,30}=(?!=)|:=|=>|->|[=!]=|=(?:\s*[?])?|:(?!:|//)"""
    r"""|,(?=\s*[rbf]?["']))\s*"""
)
_PAIR = re.compile(
    rf"""(?P<name>{_WORDS}[\w-]{{0,40}}(?:\[\w*\])?)(?P<between>{_SEPARATOR})"""
    rf"""(?P<value>{_ESCAPED}|{_LITERALS}|{_BRACKETS}|(?:{_SCHEMES}\s+)?[^\s"',;&}}\])]+)""",
    re.IGNORECASE,
)
_UPPER_PAIR = re.compile(  # environment variables: STRIPE_KEY=...
    rf"""(?P<name>\b[A-Z0-9_]{{1,60}}_(?:KEYS?|PASS|PW|PAT|AUTH|SALT|SAS|CREDS?|DSN))(?P<between>{_SEPARATOR})"""
    rf"""(?P<value>{_ESCAPED}|{_LITERALS}|[^\s"',;&}}\])]+)"""
)
# An unquoted passphrase of several words, up to punctuation or the next pair.
_PHRASE = re.compile(
    r"""((?:passw(?:or)?d|passphrase|passcode|(?<![a-z])pwd|mnemonic|seed[_ ]phrase)["']?\s*(?:=|:(?!:))\s*)"""
    r"""((?!["'<(\[{])[^\s,;"'&]+(?:\s+(?!=|[\w.-]+\s*[=:])[^\s,;"'&()]+){1,24})""",
    re.IGNORECASE,
)
_PROSE = re.compile(  # password 'x', password is x1, with password x1
    r"""((?:passw(?:or)?d|passphrase|passcode|(?:api|access|secret)[_ ]key|token)\s+(?:(?:is|was|of|to|now)\s+)?)"""
    r"""("[^"/][^"]{0,200}"|'[^'/][^']{0,200}'|(?=[^\s]*\d)[^\s"',;()\[\]{}<>/:=.]{4,200})""",
    re.IGNORECASE,
)
_HEADER = re.compile(  # to the end of the line, or of the quoted text
    r"""((?<![\w-])(?:(?:proxy-)?authorization|cookie|x-[\w-]{0,30}(?:auth|token|key|secret)[\w-]{0,20})["']?\s*:\s*["']?)([^"'\n]{2,4000})""",
    re.IGNORECASE,
)
_SET_COOKIE = re.compile(r"""(\bset-cookie["']?\s*:\s*["']?[\w-]{1,60}=)([^;"'\n\s]+)""", re.IGNORECASE)
_BEARER = re.compile(r"(?i:(\bBearer\s+))((?=[^\s]*\d)[\w.~+/=-]{10,})")
_BASIC = re.compile(
    r"(?i:(\bBasic\s+))((?=[A-Za-z0-9+/]*[A-Z\d])(?=[A-Za-z0-9+/]*[a-z])(?:[A-Za-z0-9+/]{4}){2,}"
    r"[A-Za-z0-9+/]{0,3}={0,2}(?![\w.]))"
)
_NETRC = re.compile(r"(\b(?:login|user)\s+\S+\s+(?:password|passwd)\s+)(\S+)", re.IGNORECASE)
_IDENTIFIED = re.compile(r"(\bIDENTIFIED\s+(?:WITH\s+\S+\s+)?BY\s+|\bPASSWORD\s+)('[^']*'?|\"[^\"]*\"?)", re.IGNORECASE)
_CODE = re.compile(
    r"(?:self|cls|args|opts?|options|config|cfg|conf|settings|os|env|environ|params|kwargs|request)[.\[]"
    r"|[A-Za-z_][\w.]*[(\[]"
)

# --- entropy ----------------------------------------------------------------------------------------
_HEX = re.compile(r"(?<![0-9A-Za-z_])[0-9a-fA-F]{32,}(?![0-9A-Za-z_])")
_DIGEST = re.compile(  # text before a hash that identifies a file, commit or container
    r"(?:commit|sha-?\d*|md5|crc\w*|rev(?:ision)?|git\S{0,20}|hash|digest|checksum|blobs?|tree|head|version|uuid|guid|ref"
    r"|tag|build[-_ ]?id|container|docker|pod|image|scope|layer|snapshots?|process ?group|pg|group|comm(?:unicator)?|0x"
    r"""|etag|fingerprint)["']?\s*[=:@#,\s(\[./_-]{0,3}["']?\Z""",
    re.IGNORECASE,
)
_IN_PATH = re.compile(r"(?<![\w:/])(?:~|\.{1,2})?/(?!/)[^\s\"':]*\Z")  # an absolute path so far, not a URL
_DENSE = re.compile(r"[A-Za-z0-9+/_=-]{32,}")


def redact(name: str, text: str) -> str:
    """`text`, the value of `name`, with its secrets hidden; all of it if `name` is the name of a secret."""
    level = secrecy(name)
    if level and name.lower() in ("pwd", "oldpwd") and text.startswith("/"):  # working directory of a shell
        return redact_text(text)
    if level:
        return text if harmless(text, level) or text == HIDDEN else HIDDEN
    return redact_text(text)


def redact_text(text: str) -> str:
    """Text of unknown kind: a log line, a value, a path, a sentence."""
    if len(text) > LONGEST:
        text = text[: LONGEST - 1] + "…"
    return _known(text) if len(text) <= _KEPT else _text(text)


def redact_identifier(text: str) -> str:
    """The name of a job or group. Keeps hashes, because they distinguish groups."""
    text = text[:LONGEST]
    if not suspicious(text):
        return text
    low = text.lower()
    text = _pairs(_urls(text, low), low)
    for pattern in shapes_in(text.lower()):
        text = pattern.sub(HIDDEN, text)
    return text


def redact_source(text: str) -> str:
    """Source code: only literals assigned, passed or compared to the name of a secret are hidden."""
    if len(text) > LONGEST:
        text = text[: LONGEST - 1] + "…"
    return _known_source(text) if len(text) <= _KEPT else _source(text)


def redact_words(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a command line; an option and its value may be separate words."""
    from hangdoc.redaction.command_lines import hide

    made = hide(words)
    return tuple([_word(before, word) for before, word in zip(("", *made), made, strict=False)])


def _word(before: str, word: str) -> str:
    """A word of a command line. The word before may mark it as a commit: `--revision 3a1f...`."""
    return word if _HEX.fullmatch(word) and _DIGEST.search(f"{before[-60:]} ") else redact_text(word)


def suspicious(text: str) -> bool:
    """True if the text may contain a secret at all. Fast."""
    low = text.lower()
    return any(hint in low for hint in _HINTS) or _LONG.search(text) is not None


@lru_cache(maxsize=_CACHED)
def _known(text: str) -> str:
    return _text(text)


@lru_cache(maxsize=_CACHED)
def _known_source(text: str) -> str:
    return _source(text)


def _text(text: str) -> str:
    if not suspicious(text) or (harmless(text, 1) and not _LONG.search(text)):
        return text
    if "/proc/" in text or "/sys/fs/cgroup/" in text:
        parts = _KERNEL.split(text)
        return "".join([part if i % 2 else _part(part) for i, part in enumerate(parts)])
    return _part(text)


def _part(text: str) -> str:
    low = text.lower()
    text = _urls(text, low)
    if " " in text:
        from hangdoc.redaction.command_lines import hide_in

        text = hide_in(text)
    text = _pairs(text, low)
    return _shapes(text)


def _urls(text: str, low: str) -> str:
    if "@" in text:
        text = _USERINFO.sub(_without_password, text)
        text = _TOKEN_USER.sub(lambda m: m[1] + HIDDEN + "@" if _is_token(m[2]) else m[0], text)
        text = _GO_DSN.sub(rf"\1{HIDDEN}\3", text)
        text = _BARE_USERINFO.sub(lambda m: m[0] if m[2].isdigit() or m[2] == "git" else m[1] + HIDDEN + m[3], text)
    if "://" in text:
        text = _CUT_USERINFO.sub(lambda m: m[0] if _PLACES.match(m[2]) else m[1] + HIDDEN, text)
    if "=" in text and ("?" in text or "&" in text or ";" in text):
        text = _QUERY.sub(lambda m: m[0] if harmless(m[2], 2) else m[1] + HIDDEN, text)
    return text


_PLACES = re.compile(r"[{$%<*]|\.\.\.|…|\d{1,5}(?:\.\.\.|…)?\Z")


def _without_password(found: re.Match[str]) -> str:
    scheme, user, password = found[1], found[2], found[3]
    port = "." in user if password.isdigit() else _PORT.match(password) is not None  # of an IP address or host name
    if port or (harmless(password, 2) and not password.isdigit()):
        return found[0]
    return f"{scheme}{user}:{HIDDEN}@"


def _pairs(text: str, low: str) -> str:
    if "cookie" in low or "authorization" in low or "x-" in low:
        text = _SET_COOKIE.sub(rf"\1{HIDDEN}", text)
        text = _HEADER.sub(_without_header, text)
    if "identified" in low or "password " in low:
        text = _IDENTIFIED.sub(rf"\1{HIDDEN}", text)
    if "pass" in low or "pwd" in low or "phrase" in low or "mnemonic" in low:
        text = _NETRC.sub(rf"\1{HIDDEN}", text)
        text = _PHRASE.sub(_without_phrase, text)
    text = _PAIR.sub(_without_value, text)
    text = _UPPER_PAIR.sub(_without_value, text)
    if "pass" in low or "key" in low or "token" in low:
        text = _PROSE.sub(lambda m: m[0] if HIDDEN in m[0] or harmless(m[2], 1) else m[1] + HIDDEN, text)
    if "bearer" in low or "basic" in low:
        text = _BEARER.sub(rf"\1{HIDDEN}", text)
        text = _BASIC.sub(rf"\1{HIDDEN}", text)
    return text


def _without_header(found: re.Match[str]) -> str:
    return found[0] if harmless(found[2], 2) or _CODE.match(found[2]) else found[1] + HIDDEN


def _without_phrase(found: re.Match[str]) -> str:
    return found[0] if _CODE.match(found[2]) or HIDDEN in found[2] else found[1] + HIDDEN


def _without_value(found: re.Match[str]) -> str:
    name, value = found["name"], found["value"]
    level = secrecy(name)
    if level == 0 and not _upper(name):
        return found[0]
    if harmless(value, level) or value.startswith(HIDDEN) or _CODE.match(value) or value == name or value in _TYPES:
        return found[0]
    if name.lower().endswith("pwd") and value.startswith(("/", "~")):  # working directory of a shell
        return found[0]
    quote = value[0] if value[0] in "\"'" and len(value) > 1 and value[-1] == value[0] else ""
    return f"{name}{found['between']}{quote}{HIDDEN}{quote}"


_TYPES = frozenset({"str", "bytes", "int", "bool", "float", "list", "dict", "tuple", "object", "Any", "Optional"})


def _upper(name: str) -> bool:
    return name.isupper() and name.endswith(("SALT", "DSN", "AUTH", "PAT", "PW"))


def _shapes(text: str) -> str:
    for pattern in shapes_in(text.lower()):
        text = pattern.sub(HIDDEN, text)
    if len(text) >= 32:
        text = _HEX.sub(_without_hex, text)
        text = _DENSE.sub(lambda match: _without_random(match[0]), text)
    return hide_detected(text, HIDDEN)


def _without_hex(found: re.Match[str]) -> str:
    before = found.string[max(0, found.start() - 400) : found.start()]
    if _DIGEST.search(before[-60:]) or _IN_PATH.search(before) or found[0].isdigit() or len(set(found[0])) < 6:
        return found[0]
    return HIDDEN


def _without_random(text: str) -> str:
    """A long run of base64 characters; in a path, each component is judged alone."""
    if text.count("/") >= 3:
        return "/".join([HIDDEN if len(part) >= 32 and _random(part) else part for part in text.split("/")])
    return HIDDEN if _random(text) else text


def _random(text: str) -> bool:
    """True if a run of base64 characters looks random: high entropy, and the character class changes often."""
    if text.startswith("_Z") or _is_nested_name(text):  # a mangled C++ name
        return False
    if not (re.search(r"[A-Z]", text) and re.search(r"[a-z]", text) and len(re.findall(r"\d", text)) >= 2):
        return False
    return bits(text) >= 4.3 and changes(text) >= CHANGES


def _is_nested_name(text: str) -> bool:
    """True for N3foo3barE, as type_info has the name foo::bar: each part with its length before it."""
    if not re.fullmatch(r"N[1-9].*E", text):
        return False
    rest = text[1:-1]
    while match := re.match(r"[1-9]\d?", rest):
        part, rest = rest[match.end() :][: int(match[0])], rest[match.end() + int(match[0]) :]
        if len(part) < int(match[0]) or not part.isidentifier():
            return False
    return not rest


def _is_token(text: str) -> bool:
    """True if the user name of a URL looks like a token."""
    return bool(re.search(r"\d", text) and re.search(r"[A-Za-z]", text)) and len(text) >= 16


# --- source code -----------------------------------------------------------------------------------
_LITERAL = re.compile(
    r'''(?P<prefix>[rbfuRBFU]{0,2})(?P<quote>"""|\'\'\'|"|\')(?P<inner>(?:\\.|(?!(?P=quote))[^\\])*)(?P<end>(?P=quote)|\Z)'''
)
_JOINS = re.compile(r"\W{1,3}|(?:\{[^{}]*\}|[._/:#-]){1,20}|utf-?8|ascii", re.IGNORECASE)  # separators and encodings
_PLAIN_NAME = re.compile(r"[A-Za-z_][\w.-]{0,60}")
_BEFORE_NAME = re.compile(
    r"(?:\[|(?:get|getenv|pop|environ|hasattr|getattr|has|contains|add_argument|setdefault|putenv|setenv|unsetenv|delenv"
    r"|index)\(|\b(?:in|not|import)|getattr\([\w.]+,|[{,])\s*\Z"
)
_CALL_NAME = re.compile(
    r"(?:login|log_in|signin|authenticate|set_?(?:password|token|secret|key)|connect_with|unlock)\w*", re.IGNORECASE
)
_SOURCE_NAME = re.compile(
    rf"{_WORDS}|[A-Z0-9]_KEY\b|\blog_?in\b|authenticate|unlock|(?<![a-z])auth(?![a-z])", re.IGNORECASE
)
# A name, and an attribute of it that is no call: `token.kind` is about a token of text, `password.value` a password.
_NAMED = re.compile(r"([A-Za-z_]\w*)(?=((?:\[[^\[\]]{0,60}\])?\.[A-Za-z_]\w*\b(?!\())?)")
_DIGITS_GIVEN = re.compile(r"(\b\w*(?:passw|passphrase|passcode|secret)\w*\s*(?:=|==|:)\s*)(\d{4,})\b", re.IGNORECASE)


def _source(text: str) -> str:
    if not suspicious(text):
        return text
    low = text.lower()
    text = _urls(text, low)
    if _SOURCE_NAME.search(text):
        text = _literals(text)
        text = _DIGITS_GIVEN.sub(rf"\1{HIDDEN}", text)
    return _shapes(_LITERAL.sub(_inside, text))


def _inside(found: re.Match[str]) -> str:
    """A literal may contain a DSN, a header or a command."""
    inner = found["inner"]
    if not inner or HIDDEN in inner or not suspicious(inner):
        return found[0]
    return found["prefix"] + found["quote"] + _part(inner) + found["end"]


def _literals(text: str) -> str:
    """Hide each literal after the name of a secret, unless the literal is itself a name or a key."""
    made: list[str] = []
    at, armed = 0, False
    for found in _LITERAL.finditer(text):
        between = text[at : found.start()]
        made.append(between)
        armed = armed or _arms(between)
        inner, at = found["inner"], found.end()
        after = text[at : at + 30]
        if _PLAIN_NAME.fullmatch(inner) and secrecy(inner) and _is_name(text[: found.start()], after):
            armed = armed or not after.lstrip().startswith(",") or text[: found.start()].rstrip().endswith("(")
            made.append(found[0])
            continue
        if secrecy(inner.lstrip("-")) and _PLAIN_NAME.fullmatch(inner.lstrip("-")) and inner.startswith("-"):
            armed = True  # an option
            made.append(found[0])
            continue
        kept = (
            not armed or harmless(inner, 2) or _JOINS.fullmatch(inner) or _is_key(text[: found.start()], after, inner)
        )
        made.append(found[0] if kept else f"{found['prefix']}{found['quote']}{HIDDEN}{found['end'] or found['quote']}")
    made.append(text[at:])
    return "".join(made)


def _arms(between: str) -> bool:
    """True if code names a secret, so the next literal may be its value: `password=`, `login(`."""
    return any(
        secrecy(found[1]) > bool(found[2]) or _CALL_NAME.fullmatch(found[1]) for found in _NAMED.finditer(between)
    )


def _is_name(before: str, after: str) -> bool:
    """True if a literal is the key of a mapping or the name of a variable: `environ["TOKEN"]`, `{"password": ...`."""
    if not re.match(r"\s*(?:\]|:|,|\))", after):
        return False
    return _BEFORE_NAME.search(before) is not None or before.rstrip().endswith("(")


def _is_key(before: str, after: str, inner: str) -> bool:
    """True if a literal is another key of the same mapping, `{"password": p, "user": u}`, or an index."""
    if not _PLAIN_NAME.fullmatch(inner):
        return False
    key = re.match(r"\s*:", after) and re.search(r"[{,]\s*\Z", before)
    return bool(key or (re.match(r"\s*\]", after) and before.endswith("[")))
