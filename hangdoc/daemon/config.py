"""The configuration of `hangdoc daemon`: TOML, checked with line and nearest name."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta
from msgspec.structs import fields

from hangdoc.alerts.config import AlertsConfig, Text
from hangdoc.alerts.http import url_problem
from hangdoc.errors import HangdocError
from hangdoc.evidence.record import Record
from hangdoc.formatting import suggestion
from hangdoc.redaction.text import redact_text
from hangdoc.render.sanitize import clean
from hangdoc.system.node_socket import LONGEST_PATH
from hangdoc.system.private_files import read_file
from hangdoc.system.programs import only_root_may_change
from probes import ASKABLE

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from hangdoc.fleet.transports import FleetOptions

MAX_BYTES = 2**20  # of the file
MAX_PROBLEMS = 20  # reported at once
PORT = 14264  # of /metrics and /healthz; below the ephemeral ports, and no exporter's
TAKEN_PORTS = range(9100, 10000)  # Prometheus's exporters

Texts = Annotated[tuple[Text, ...], Meta(max_length=1_000)]
Path_ = tuple[str, ...]  # of a key: ("alerts", "webhook", "url")


class DaemonConfig(Record, frozen=True):
    """The daemon itself."""

    state_dir: Text = ""  # "": the default of the incident store
    socket: Text = ""  # "": the default place; "off": none
    interval_s: Annotated[float, Meta(ge=0.1, le=60)] = 1.0
    playbooks: Texts = ()
    ask: Texts = ()


class JobsConfig(Record, frozen=True):
    """Which jobs are watched; an empty list allows all."""

    users: Texts = ()
    slurm_jobs: Texts = ()
    labels: Texts = ()  # globs of script names
    opt_out: bool = True

    def wanted(self, user: str | None, slurm_job: str | None, label: str) -> bool:
        """True if each list that is not empty allows the job."""
        return (
            (not self.users or user in self.users)
            and (not self.slurm_jobs or slurm_job in self.slurm_jobs)
            and (not self.labels or any(fnmatchcase(label, glob) for glob in self.labels))
        )


class IncidentsConfig(Record, frozen=True):
    """How long incidents are kept: until the first of three limits."""

    keep_days: Annotated[float, Meta(ge=0.01, le=3650)] = 90.0
    keep_count: Annotated[int, Meta(ge=1, le=100_000)] = 1_000
    keep_mib: Annotated[int, Meta(ge=1, le=1_000_000)] = 2_048


class MetricsConfig(Record, frozen=True):
    """Where metrics are."""

    port: Annotated[int, Meta(ge=0, le=65535)] = PORT  # on loopback; 0: off
    textfile: Text = ""  # "": off


class BudgetConfig(Record, frozen=True):
    """What the daemon may use, with its children."""

    cpu_percent: Annotated[float, Meta(ge=0.1, le=100)] = 1.0  # of one core
    memory_mib: Annotated[int, Meta(ge=32, le=65536)] = 80


class FleetConfig(Record, frozen=True):
    """Other hosts, as with `hangdoc watch --nodes`."""

    nodes: Text = ""
    via: Literal["", "ssh", "srun", "kubectl"] = ""
    agent_command: Text = "hangdoc"
    jobid: Text = ""
    selector: Text = ""
    namespace: Text = ""
    container: Text = ""

    def __bool__(self) -> bool:
        return bool(self.via or self.nodes)

    def options(self) -> FleetOptions | None:
        """The options of the fleet; None: this host only."""
        if not self:
            return None
        from hangdoc.fleet.transports import FleetOptions

        given = (self.nodes, self.jobid, self.selector, self.namespace, self.container)
        nodes, *rest = (text or None for text in given)
        return FleetOptions(self.via or "ssh", nodes, self.agent_command, *rest)


class ActionsConfig(Record, frozen=True):
    """The site's own command for a faulty job or node."""

    command: Text = ""  # "": off
    kind: Literal["job", "node"] = "node"
    dry_run: bool = True
    min_confidence: Literal["medium", "high"] = "high"
    max_per_hour: Annotated[int, Meta(ge=1, le=1_000)] = 2
    shared_dir: Text = ""  # "": the state folder
    timeout_s: Annotated[float, Meta(ge=1, le=3600)] = 60.0


class Config(Record, frozen=True):
    """The whole configuration, checked."""

    daemon: DaemonConfig = DaemonConfig()
    jobs: JobsConfig = JobsConfig()
    incidents: IncidentsConfig = IncidentsConfig()
    alerts: AlertsConfig = AlertsConfig()
    metrics: MetricsConfig = MetricsConfig()
    budget: BudgetConfig = BudgetConfig()
    fleet: FleetConfig = FleetConfig()
    actions: ActionsConfig = ActionsConfig()
    warnings: tuple[str, ...] = ()  # one sentence each; not a section


class ConfigError(HangdocError):
    """The configuration has problems: one line each, with file and line. Exit code 64."""

    def __init__(self, problems: list[str]) -> None:
        more = len(problems) - MAX_PROBLEMS
        super().__init__("\n".join([*problems[:MAX_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]), 64)


DEFAULT = f"""\
# hangdoc daemon: the configuration. Values are the defaults; lines with `#` before a key are examples.
# Check a file with `hangdoc daemon --check-config --config FILE`. SIGHUP reads it again.

[daemon]
state_dir = ""             # incidents, state and spool; "": /var/lib/hangdoc for root, else ~/.local/state/hangdoc
socket = ""                # where agents ask; "": /run/hangdoc/hangdoc.sock for root and the service; "off": nowhere
interval_s = 1.0           # time between samples; longer while every job is healthy
playbooks = []             # folders with playbooks of your own
ask = []                   # requests that hangdoc may send: {", ".join(map(repr, sorted(ASKABLE)))}

[jobs]                     # An empty list allows all. A job must match each list that is not empty.
users = []                 # names of users
slurm_jobs = []            # Slurm job IDs
labels = []                # script names or Slurm job names, with wildcards: "train_*.py"
opt_out = true             # leave a job alone if its environment has HANGDOC=off

[incidents]                # The oldest are removed first, at the first limit that is reached.
keep_days = 90
keep_count = 1000
keep_mib = 2048

# Secrets (addresses of chats, tokens, passwords) come from a file (_file) or the environment (_env).

[alerts.alertmanager]
urls = []                  # every Alertmanager of a cluster: "http://127.0.0.1:9093"
resend_s = 60              # an open incident is sent again
expire_s = 600             # an alert ends by itself if hangdoc has been away for so long
heartbeat = false          # a HangdocHeartbeat alert, sent again as long as rounds finish
timeout_s = 10
# token_file = "/etc/hangdoc/alertmanager.token"
# username = "hangdoc"
# password_file = "/etc/hangdoc/alertmanager.password"
# ca_file = "/etc/ssl/site-ca.pem"

[alerts.alertmanager.labels]    # added to each alert
# cluster = "a100"

[alerts.webhook]           # CloudEvents 1.0, structured JSON
timeout_s = 10
# url = "https://events.example.com/hangdoc"
# token_env = "HANGDOC_WEBHOOK_TOKEN"

[alerts.apprise]           # chat, mail, pagers: https://github.com/caronc/apprise
timeout_s = 30
# urls_file = "/etc/hangdoc/apprise.urls"    # one address per line

[alerts.heartbeat]         # an address that is fetched as long as rounds finish (dead man's switch)
every_s = 60
timeout_s = 10
# url_file = "/etc/hangdoc/heartbeat.url"

[metrics]
port = {PORT}               # /metrics and /healthz on 127.0.0.1; 0: off
textfile = ""              # for node_exporter: "/var/lib/prometheus/node-exporter/hangdoc.prom"

[budget]                   # with all children
cpu_percent = 1.0          # of one core
memory_mib = 80

[fleet]                    # jobs that span nodes, as with `hangdoc watch --nodes`
nodes = ""                 # "node[1-64]"
via = ""                   # "ssh", "srun" or "kubectl"
agent_command = "hangdoc"
# jobid = "123"
# selector = "app=train"
# namespace = "training"
# container = "main"

[actions]                  # the site's own command, with the incident in its environment
command = ""               # "": off
kind = "node"              # "node": only if a node is to blame; "job": only if the job is
dry_run = true             # only say what would be run
min_confidence = "high"
max_per_hour = 2           # of all daemons that share the folder:
shared_dir = ""            # "": the state folder, so this daemon alone
timeout_s = 60
"""


def load(path: Path) -> Config:
    """The configuration in a file. Raises ConfigError with every problem."""
    try:
        return parse(read_file(path, MAX_BYTES).decode(), path)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is not UTF-8"
        raise ConfigError([f"{path}: {why}; `hangdoc daemon --print-config` prints one"]) from None


def parse(text: str, path: Path) -> Config:
    """The configuration in a text; `path` is for messages, and for who may read it."""
    try:
        given = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        found = re.search(r"\(at line (\d+), column \d+\)", str(error))
        line = f":{found[1]}" if found else ""
        raise ConfigError([f"{path}{line}: not TOML: {clean(str(error), 200)}"]) from None
    lines = _lines(text)
    problems: list[tuple[Path_, str]] = []
    config: Config = _section(Config, given, (), problems)
    if not problems:
        problems += _wrong(config, path)
    if problems:
        numbered = sorted((_line(lines, at), sentence) for at, sentence in problems)
        raise ConfigError([f"{path}{f':{line}' if line else ''}: {sentence}" for line, sentence in numbered])
    return msgspec.structs.replace(config, warnings=tuple(_warnings(config, path)))


def _section(kind: Any, given: Mapping[str, Any], at: Path_, problems: list[tuple[Path_, str]]) -> Any:
    """A table as a record; what is wrong goes to `problems`, and the default stays."""
    known = {field.name: field for field in fields(kind) if field.name != "warnings"}
    found = {}
    for name, value in given.items():
        here = (*at, name)
        where = f"in [{'.'.join(at)}]" if at else "at the top"
        field = known.get(name)
        if field is None:
            what = "section" if isinstance(value, dict) else "key"
            problems.append((here, f"unknown {what} `{clean(name, 80)}` {where}; {suggestion(name, known)}"))
        elif isinstance(field.type, type) and issubclass(field.type, Record):
            if isinstance(value, dict):
                found[name] = _section(field.type, value, here, problems)
            else:
                problems.append((here, f"`{name}` is a section: write [{'.'.join(here)}]"))
        else:
            try:
                found[name] = msgspec.convert(value, field.type)
            except msgspec.ValidationError as error:
                problems.append((here, f"`{name}` {where}: {_expected(str(error), field.type, value)}"))
    return kind(**found)


_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text in quotes",
    "array": "a list",
    "object": "a table",
    "bool": "true or false",
}


def _expected(error: str, kind: Any, value: Any) -> str:
    """The sentence of a msgspec error, in the terms of TOML, with the value that is wrong."""
    choices = [choice for choice in get_args(kind) if isinstance(choice, str)]
    shown = clean(redact_text(repr(value)), 60)
    if choices and isinstance(value, str):
        return f"{shown} is none of {', '.join(repr(choice) for choice in choices)}; {suggestion(value, choices)}"
    if "matching regex" in error:
        return "a name of a label has letters, digits and `_`, such as `cluster`"
    sentence = re.sub(r" - at `[^`]*`$", "", error)
    sentence = re.sub(r"`(\w+)`", lambda found: _KINDS.get(found[1], found[1]), sentence)
    return f"{sentence[0].lower()}{sentence[1:]}; given is {shown}"


# --- what types do not say ------------------------------------------------------------------------


def _wrong(config: Config, path: Path) -> Iterator[tuple[Path_, str]]:
    """Problems of valid values: key, and sentence with remedy."""
    alerts, actions = config.alerts, config.actions
    listens = config.daemon.socket
    if listens not in ("", "off") and not (listens.startswith("/") and len(os.fsencode(listens)) <= LONGEST_PATH):
        sentence = f'`socket` in [daemon] is an absolute path of at most {LONGEST_PATH} bytes, or "off"'
        yield ("daemon", "socket"), sentence
    for name in config.daemon.ask:
        if name not in (*ASKABLE, "all"):
            yield ("daemon", "ask"), f"`ask` in [daemon]: no request is named {name!r}; {suggestion(name, ASKABLE)}"
    if config.metrics.port in TAKEN_PORTS:
        first, last = TAKEN_PORTS[0], TAKEN_PORTS[-1]
        yield ("metrics", "port"), f"`port` in [metrics]: exporters have {first}-{last}; take another, such as {PORT}"
    if config.metrics.port and config.metrics.port < 1024:
        yield ("metrics", "port"), f"`port` in [metrics]: below 1024 is for root; take another, such as {PORT}"
    if config.metrics.textfile and not config.metrics.textfile.endswith(".prom"):
        yield ("metrics", "textfile"), "`textfile` in [metrics]: node_exporter reads only names that end with .prom"
    for url in alerts.alertmanager.urls:
        yield from _wrong_url(url, ("alerts", "alertmanager", "urls"))
    for section in ("webhook", "heartbeat"):
        receiver = getattr(alerts, section)
        yield from _one_of(receiver, ("url", "url_file", "url_env"), ("alerts", section))
        if receiver.url:
            yield from _wrong_url(receiver.url, ("alerts", section, "url"))
    if alerts.alertmanager.expire_s < 2 * alerts.alertmanager.resend_s:
        sentence = "`expire_s` in [alerts.alertmanager] must be at least twice `resend_s`: else alerts come and go"
        yield ("alerts", "alertmanager", "expire_s"), sentence
    for section in ("alertmanager", "webhook"):
        receiver = getattr(alerts, section)
        yield from _one_of(receiver, ("token_file", "token_env", "username"), ("alerts", section))
        yield from _one_of(receiver, ("password_file", "password_env"), ("alerts", section))
        if bool(receiver.username) != bool(receiver.password):
            at = ("alerts", section, "username")
            yield at, f"[alerts.{section}] needs both `username` and `password_file` (or `password_env`)"
    if alerts.apprise:
        if find_spec("apprise") is None:
            yield ("alerts", "apprise"), "[alerts.apprise] needs Apprise: pip install 'hangdoc[alerts]'"
        try:
            alerts.apprise.addresses()
        except HangdocError as error:
            yield ("alerts", "apprise", "urls_file"), f"[alerts.apprise] has no addresses: {error}"
    if actions.shared_dir and not os.path.isabs(actions.shared_dir):
        yield ("actions", "shared_dir"), "`shared_dir` in [actions] is an absolute path"
    if os.geteuid() == 0 and actions.command and os.path.exists(path) and not only_root_may_change(str(path)):
        sentence = "root runs no `command` of a file that other users can change: chown root, chmod go-w"
        yield ("actions", "command"), sentence


def _one_of(record: Record, names: tuple[str, ...], at: Path_) -> Iterator[tuple[Path_, str]]:
    given = [name for name in names if getattr(record, name)]
    if len(given) > 1:
        yield (*at, given[1]), f"[{'.'.join(at)}] has {' and '.join(f'`{name}`' for name in given)}; give one of them"


def _wrong_url(url: str, at: Path_) -> Iterator[tuple[Path_, str]]:
    why = url_problem(url)
    if why:
        yield at, f"`{at[-1]}` in [{'.'.join(at[:-1])}]: {why}"


def _warnings(config: Config, path: Path) -> Iterator[str]:
    """What is allowed but unwise: files with secrets that other users can read."""
    alerts = config.alerts
    shown = [url for url in (alerts.webhook.url, alerts.heartbeat.url) if len(urlsplit(url).path) > 1]
    secret = bool(shown or alerts.apprise.urls)
    files = {path: "may hold a secret in an address"} if secret else {}
    named = (alerts.alertmanager, alerts.webhook, alerts.apprise, alerts.heartbeat)
    for receiver in named:
        for name in ("token_file", "password_file", "url_file", "urls_file"):
            if file := getattr(receiver, name, ""):
                files[Path(file)] = "holds a secret"
    for file, what in files.items():
        try:
            mode = os.stat(file).st_mode
        except OSError as error:
            if file != path:
                yield f"{file}: {error.strerror}; alerts that need it wait"
            continue
        if mode & stat.S_IROTH:
            yield f"{file} {what} and every user can read it: chmod 600 {file}"


# --- lines ----------------------------------------------------------------------------------------

_HEADER = re.compile(r"\s*\[{1,2}\s*([^\]\n]+?)\s*\]{1,2}\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")


def _lines(text: str) -> Mapping[Path_, int]:
    """The first line of each key and section. The parser gives none; multi-line texts may mislead."""
    found: dict[Path_, int] = {}
    section: Path_ = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            section = at = _parts(header[1])
        elif key := _KEY.match(line):
            at = (*section, *_parts(key[1]))
        else:
            continue
        for length in range(1, len(at) + 1):
            found.setdefault(at[:length], number)
    return found


def _parts(dotted: str) -> Path_:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _line(lines: Mapping[Path_, int], at: Path_) -> int:
    """The line of a key, or of the nearest table around it; 0: unknown."""
    return next((lines[at[:length]] for length in range(len(at), 0, -1) if at[:length] in lines), 0)
