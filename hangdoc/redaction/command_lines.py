"""Secrets on command lines: options whose value is a separate word, and the options of well-known programs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hangdoc.redaction.names import harmless, secrecy

HIDDEN = "<redacted>"

_MYSQL = ("mysql", "mysqldump", "mysqladmin", "mysqlimport", "mysqlshow", "mariadb", "mariadb-dump")
_MONGO = ("mongo", "mongosh", "mongodump", "mongorestore", "mongoexport")
_LDAP = ("ldapsearch", "ldapmodify", "ldapadd", "ldapwhoami", "ldapdelete", "ldappasswd")
_PUBLISH = ("mosquitto_pub", "mosquitto_sub")
# Options whose value is a secret, by program; the value may follow in the same word (`-pVALUE`).
_VALUES: dict[str, frozenset[str]] = {
    **{name: frozenset({"-p"}) for name in (*_MONGO, "cqlsh", "sshpass", "rdesktop")},
    **{name: frozenset({"-w", "-s"}) for name in _LDAP},
    **{name: frozenset({"-P"}) for name in ("sqlcmd", "bcp", "ipmitool", "zip", "unzip", *_PUBLISH)},
    **{name: frozenset({"-A", "-X", "-c"}) for name in ("snmpwalk", "snmpget", "snmpset")},
    **{name: frozenset({"-a", "--pass"}) for name in ("redis-cli", "valkey-cli")},
    "openssl": frozenset({"-pass", "-passin", "-passout", "-k", "-K"}),
    "keytool": frozenset({"-storepass", "-keypass"}),
    "curl": frozenset({"-b"}),
    "doctl": frozenset({"-t"}),
}
_ATTACHES = frozenset({*_MYSQL, "7z", "7za", "rar", "sshpass"})  # -pSECRET, in one word
_ATTACHED = re.compile(r"(-p)(.+)")
# Options whose value is USER, a separator and a secret.
_USERS: dict[str, tuple[frozenset[str], str]] = {
    "curl": (frozenset({"-u", "--user", "-U", "--proxy-user"}), ":"),
    **{name: (frozenset({"-a", "--auth"}), ":") for name in ("http", "https", "xh")},
    **{name: (frozenset({"-U", "--user"}), "%") for name in ("smbclient", "rpcclient")},
    **{name: (frozenset({"--creds", "--src-creds", "--dest-creds"}), ":") for name in ("skopeo", "buildah", "podman")},
    "lftp": (frozenset({"-u", "--user"}), ","),
}
_LOGINS = frozenset({"docker", "podman", "helm", "oras", "nerdctl", "buildah", "crane", "skopeo", "az", "oc", "heroku"})
_SETS = frozenset({"aws", "git", "doppler", "gcloud", "npm", "pip", "pip3", "poetry"})  # `... set NAME VALUE`
# Programs that take a secret as the word after these.
_POSITIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("wandb", ("login",)),
    ("vault", ("login",)),
    ("ngrok", ("authtoken",)),
    ("ngrok", ("config", "add-authtoken")),
    ("cargo", ("login",)),
    ("rclone", ("obscure",)),
)
_PROGRAMS = frozenset(
    {*_VALUES, *_USERS, *_LOGINS, *_ATTACHES, *_SETS, *(name for name, _ in _POSITIONS), "kubectl", "mc", "htpasswd"}
)
_GIT_CREDENTIALS = re.compile(r"(?i).*(?:token|secret|password|credential|extraheader|api_?key|access_?key)")
_USER_NEXT = 3  # a secrecy level: the next word is a user and a secret
_PROGRAM = re.compile(r"[\w.+-]{1,40}")
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")
_SHORT = re.compile(r"-[A-Za-z]")
_ENDS = frozenset({"|", "||", "&&", ";", "&", "then", "do"})
_STDIN = ("--password-stdin", "chpasswd", "sudo -S", "sudo -kS", "passwd --stdin", "--pass-stdin", "gh auth login")
_WORD = re.compile(r"""(?:"(?:[^"\\]|\\.)*"?|'[^']*'?|[^\s"'|;&]|(?<=\S)[;&](?=\S))+|[|;&]+""")
_KNOWN = re.compile(
    r"(?:^|[\s/;|&(\"'`])(?:" + "|".join(map(re.escape, sorted(_PROGRAMS, key=len, reverse=True))) + r")\s"
)
_INNER = re.compile(r"""(["'])([^"']*\s[^"']*)\1""")  # a quoted command line
_LONG_OPTION = re.compile(
    r"--?[\w-]{0,60}(?:token|secret|pass|pwd|cred|key|auth|bearer|cookie|jwt|webhook)", re.IGNORECASE
)


def hide(words: Sequence[str]) -> list[str]:
    """The words of a command line without the values of secret options. A word may still contain other secrets."""
    made: list[str] = []
    program, await_value = "", 0
    verbs: list[str] = []
    for word in words:
        bare = word.strip("\"'")
        if await_value:
            level, await_value = await_value, 0
            if level == _USER_NEXT:
                made.append(_quoted(word, _user(bare, _USERS[program][1])))
                continue
            option = _OPTION.fullmatch(bare) and (bare.startswith("--") or len(bare) == 2)
            if not option and not harmless(bare, level):
                made.append(_quoted(word, HIDDEN))
                continue
        if word in _ENDS or set(word) <= set("|;&"):
            program, verbs = "", []
            made.append(word)
            continue
        name = bare.rpartition("/")[2]
        if not program and _PROGRAM.fullmatch(name) and "=" not in word and not word.startswith("-"):
            program = name
            made.append(word)
            continue
        if name in _PROGRAMS and (program not in _PROGRAMS or program == "sshpass"):
            program, verbs = name, []  # after sudo, env, an interpreter ...
            made.append(word)
            continue
        word, await_value = _mask_word(program, verbs, word, bare)
        if not bare.startswith("-"):
            verbs.append(bare)
        made.append(word)
    return made


def hide_in(text: str) -> str:
    """`hide` for text that may contain a command line."""
    reads = any(mark in text for mark in _STDIN)
    if not (reads or _LONG_OPTION.search(text) or _KNOWN.search(text)):
        return text
    spots = list(_WORD.finditer(text))
    words = [spot[0] for spot in spots]
    made = hide(words)
    if reads:
        made = _without_echoed(made)
    made = [_INNER.sub(lambda found: found[1] + hide_in(found[2]) + found[1], word) for word in made]
    if made == words:
        return text
    parts, at = [], 0
    for spot, word in zip(spots, made, strict=True):
        parts += [text[at : spot.start()], word]
        at = spot.end()
    return "".join([*parts, text[at:]])


def _mask_word(program: str, verbs: list[str], word: str, bare: str) -> tuple[str, int]:
    """The word, masked if needed, and the secrecy of the next word (0: not determined by this one)."""
    option, equals, value = bare.partition("=")
    if program in _USERS and option in _USERS[program][0]:
        return (f"{option}={_user(value, _USERS[program][1])}", 0) if equals else (word, _USER_NEXT)
    if program in _VALUES and bare in _VALUES[program]:
        return word, 2
    if program in _ATTACHES and (found := _ATTACHED.fullmatch(bare)) and not bare.startswith("--"):
        return _quoted(word, found[1] + HIDDEN), 0
    if program in _VALUES and _SHORT.match(bare) and bare[:2] in _VALUES[program] and len(bare) > 2 and bare[1] != "-":
        return _quoted(word, bare[:2] + HIDDEN), 0
    if program in _LOGINS and "login" in verbs and bare == "-p":
        return word, 2
    if option.startswith("-"):
        return _of_option(word, option, equals, value)
    if equals and _is_secret(option) and value and not harmless(value, secrecy(option)):
        return _quoted(word, f"{option}={HIDDEN}"), 0
    return (HIDDEN, 0) if _by_position(program, verbs, bare) else (word, 0)


def _of_option(word: str, option: str, equals: str, value: str) -> tuple[str, int]:
    name = option.lstrip("-")
    if name == "from-literal":
        key, also, _ = value.partition("=")
        return (f"{option}={key}={HIDDEN}", 0) if also else (word, 2)
    level = secrecy(name)
    if not level or not re.search(r"[A-Za-z]{3}", name):
        return word, 0
    if not equals:
        return word, level
    if harmless(value, level):
        return word, 0
    return _quoted(word, f"{option}={HIDDEN}"), 0


def _is_secret(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z_][\w.-]*", name) is not None and secrecy(name) > 0


def _by_position(program: str, verbs: list[str], word: str) -> bool:
    """True if the word is a secret by its position: `wandb login KEY`, `aws configure set aws_secret_access_key X`."""
    if any(program == name and tuple(verbs[-len(before) :]) == before for name, before in _POSITIONS):
        return len(word) >= 8
    if (
        program in ("aws", "git", "doppler", "gcloud", "npm", "pip", "poetry", "pip3")
        and verbs[:1]
        and "set" not in word
    ):
        sets = {"set", "config", "configure"} & set(verbs)
        return bool(sets) and _GIT_CREDENTIALS.fullmatch(verbs[-1]) is not None
    if program == "mc" and verbs[:2] == ["alias", "set"]:
        return len(verbs) >= 4
    return program == "htpasswd" and len(verbs) >= 2


def _user(value: str, separator: str) -> str:
    name, found, secret = value.partition(separator)
    return f"{name}{separator}{HIDDEN}" if found and not harmless(secret, 2) else value


def _without_echoed(words: list[str]) -> list[str]:
    """Hide the text piped into a program that reads a password from standard input."""
    made, echoes = [], False
    for word in words:
        if word in ("echo", "printf", "-n", "-e"):
            echoes = echoes or word in ("echo", "printf")
        elif set(word) <= set("|;&"):
            echoes = False
        elif echoes and not harmless(word, 2):
            word = HIDDEN
        made.append(word)
    return made


def _quoted(word: str, text: str) -> str:
    """`text` in the quotes of `word`."""
    return f"{word[0]}{text}{word[0]}" if len(word) > 1 and word[0] in "\"'" and word[-1] == word[0] else text
