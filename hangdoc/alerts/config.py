"""What the configuration says about the receivers of alerts. Secrets come from files or the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta, field

from hangdoc.errors import HangdocError
from hangdoc.evidence.record import Record
from hangdoc.system.private_files import read_file

MAX_SECRET = 64 * 2**10  # bytes of a file with a secret
MAX_RECEIVERS = 8  # Alertmanagers, and addresses of Apprise: each has a thread and a queue

Text = Annotated[str, Meta(max_length=2_000)]
Addresses = Annotated[tuple[Text, ...], Meta(max_length=MAX_RECEIVERS)]
Deadline = Annotated[float, Meta(ge=0.1, le=60)]
Labels = Annotated[Mapping[Annotated[str, Meta(pattern="^[a-zA-Z_][a-zA-Z0-9_]{0,99}$")], Text], Meta(max_length=20)]


@dataclass(frozen=True, slots=True)
class Secret:
    """A text that is read where it is used, so that a file with a new one takes effect at once."""

    text: str = ""
    file: str = ""
    variable: str = ""

    def __bool__(self) -> bool:
        return bool(self.text or self.file or self.variable)

    def read(self) -> str:
        """The text without surrounding whitespace. Raises HangdocError if it is missing."""
        try:
            found = read_file(Path(self.file), MAX_SECRET).decode() if self.file else self.text
        except (OSError, UnicodeDecodeError) as error:
            raise HangdocError(f"{self.file}: {getattr(error, 'strerror', None) or 'is not text'}") from None
        found = (os.environ.get(self.variable, "") if self.variable else found).strip()
        if not found:
            where = f"the environment has no {self.variable}" if self.variable else f"{self.file} is empty"
            raise HangdocError(where)
        return found


class _Http(Record, frozen=True):
    """Common to all that speak HTTP."""

    username: Text = ""
    password_file: Text = ""
    password_env: Text = ""
    token_file: Text = ""
    token_env: Text = ""
    ca_file: Text = ""  # PEM; "": the authorities of the system
    timeout_s: Deadline = 10.0  # of one delivery, from the name lookup to the end of the answer

    @property
    def token(self) -> Secret:
        return Secret(file=self.token_file, variable=self.token_env)

    @property
    def password(self) -> Secret:
        return Secret(file=self.password_file, variable=self.password_env)


class AlertmanagerConfig(_Http, frozen=True):
    """Prometheus Alertmanagers: every one of a cluster."""

    urls: Addresses = ()
    resend_s: Annotated[float, Meta(ge=1, le=3600)] = 60.0
    expire_s: Annotated[float, Meta(ge=3, le=86400)] = 600.0  # an alert ends by itself if hangdoc is gone for so long
    labels: Labels = field(default_factory=dict)  # added to each alert
    heartbeat: bool = False  # a HangdocHeartbeat alert, sent again as long as rounds finish


class WebhookConfig(_Http, frozen=True):
    """An address that takes CloudEvents."""

    url: Text = ""
    url_file: Text = ""
    url_env: Text = ""

    @property
    def address(self) -> Secret:
        return Secret(self.url, self.url_file, self.url_env)


class AppriseConfig(Record, frozen=True):
    """Chats, mail and pagers, by the addresses of Apprise."""

    urls: Addresses = ()
    urls_file: Text = ""  # one address per line
    urls_env: Text = ""  # separated by white space
    timeout_s: Deadline = 30.0

    def addresses(self) -> tuple[str, ...]:
        """Every address. Raises HangdocError if a file or variable is missing, or there are too many."""
        words = list(self.urls)
        for secret in (Secret(file=self.urls_file), Secret(variable=self.urls_env)):
            lines = secret.read().splitlines() if secret else ()
            words += [word for line in lines if not line.lstrip().startswith("#") for word in line.split()]
        if len(words) > MAX_RECEIVERS:
            raise HangdocError(f"{len(words)} addresses for Apprise: at most {MAX_RECEIVERS}")
        return tuple(dict.fromkeys(words))

    def __bool__(self) -> bool:
        return bool(self.urls or self.urls_file or self.urls_env)


class HeartbeatConfig(Record, frozen=True):
    """A dead man's switch: an address that is fetched as long as rounds finish."""

    url: Text = ""
    url_file: Text = ""
    url_env: Text = ""
    every_s: Annotated[float, Meta(ge=1, le=86400)] = 60.0
    timeout_s: Deadline = 10.0

    @property
    def address(self) -> Secret:
        return Secret(self.url, self.url_file, self.url_env)


class AlertsConfig(Record, frozen=True):
    """Receivers; each one is off until it has an address."""

    alertmanager: AlertmanagerConfig = AlertmanagerConfig()
    webhook: WebhookConfig = WebhookConfig()
    apprise: AppriseConfig = AppriseConfig()
    heartbeat: HeartbeatConfig = HeartbeatConfig()
