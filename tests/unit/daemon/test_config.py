from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from hangdoc.alerts.config import Secret
from hangdoc.daemon.config import DEFAULT, Config, ConfigError, load, parse
from hangdoc.errors import HangdocError
from hangdoc.fleet.transports import FleetOptions

HERE = Path("hangdoc.toml")


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, HERE)
    assert caught.value.code == 64
    return str(caught.value).splitlines()


def test_the_printed_default_has_the_default_values() -> None:
    assert parse(DEFAULT, HERE) == Config() == parse("", HERE)


def test_the_printed_default_names_every_key() -> None:
    """Also where the key has no default: its example is a comment, and valid."""
    examples = re.sub(r"^# (?=\w+ = )", "", DEFAULT, flags=re.MULTILINE)
    examples = examples.replace("urls_file", "# urls_file")  # it would have to exist
    with_examples = parse(examples.replace("username", "# ").replace("password_file", "# "), HERE)
    assert with_examples.alerts.webhook.url
    assert with_examples.alerts.alertmanager.labels == {"cluster": "a100"}
    assert with_examples.fleet.options() is None  # neither `nodes` nor `via`


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "[daemon]\n\n# a comment\nintervall_s = 3",
            ":4: unknown key `intervall_s` in [daemon]; did you mean `interval_s`?",
        ),
        ("[alert.webhook]\nurl = ''", ":1: unknown section `alert` at the top; did you mean `alerts`?"),
        ("[alerts.web-hook]\n", ":1: unknown section `web-hook` in [alerts]; did you mean `webhook`?"),
        (
            "alerts.webhook.urll = 'x'",
            ":1: unknown key `urll` in [alerts.webhook]; did you mean `url`?",
        ),
        ("[daemon]\ninterval_s = 0", ":2: `interval_s` in [daemon]: expected a number >= 0.1; given is 0"),
        ("[daemon]\ninterval_s = nan", ":2: `interval_s` in [daemon]: expected a number >= 0.1; given is nan"),
        (
            "[jobs]\nopt_out = 'no'",
            ":2: `opt_out` in [jobs]: expected true or false, got a text in quotes; given is 'no'",
        ),
        (
            "[fleet]\nvia = 'shh'",
            ":2: `via` in [fleet]: 'shh' is none of '', 'ssh', 'srun', 'kubectl'; did you mean `ssh`?",
        ),
        ("[daemon]\nask = ['pign']", ":2: `ask` in [daemon]: no request is named 'pign'; did you mean `ping`?"),
        ("metrics = 3", ":1: `metrics` is a section: write [metrics]"),
        ("[metrics]\nport = 9100", ":2: `port` in [metrics]: exporters have 9100-9999; take another, such as 14264"),
        ("[metrics]\nport = 80", ":2: `port` in [metrics]: below 1024 is for root; take another, such as 14264"),
        (
            "[metrics]\ntextfile = '/a'",
            ":2: `textfile` in [metrics]: node_exporter reads only names that end with .prom",
        ),
        (
            "[alerts.alertmanager]\nurls = ['localhost:9093']",
            ":2: `urls` in [alerts.alertmanager]: not an address; write https://HOST[:PORT]/PATH",
        ),
        (
            "[alerts.webhook]\nurl = 'https://u:p@h/'",
            ":2: `url` in [alerts.webhook]: an address with a password; use `username` and `password_file`",
        ),
        (
            "[alerts.webhook]\nurl = 'https://h/'\nurl_env = 'X'",
            ":3: [alerts.webhook] has `url` and `url_env`; give one of them",
        ),
        (
            "[alerts.webhook]\nusername = 'x'",
            ":2: [alerts.webhook] needs both `username` and `password_file` (or `password_env`)",
        ),
        (
            "[alerts.alertmanager]\nresend_s = 400",
            ":1: `expire_s` in [alerts.alertmanager] must be at least twice `resend_s`: else alerts come and go",
        ),
        (
            "[alerts.alertmanager.labels]\n'a b' = 'c'",
            ":1: `labels` in [alerts.alertmanager]: a name of a label has letters, digits and `_`, such as `cluster`",
        ),
    ],
)
def test_a_problem_has_its_line_and_a_remedy(text: str, sentence: str) -> None:
    assert problems(text) == [f"hangdoc.toml{sentence}"]


def test_what_is_not_toml_has_its_line() -> None:
    (found,) = problems("[daemon]\n[jobs\n")
    assert re.match(r"hangdoc\.toml:2: not TOML: Expected .\]. at the end of a table declaration", found)


def test_all_problems_are_listed_in_order_of_line() -> None:
    found = problems("[daemon]\nx = 1\n[jobs]\ny = 1\nusers = 3\n" + "".join(f"z{i} = 1\n" for i in range(30)))
    assert [line.split()[0] for line in found[:3]] == ["hangdoc.toml:2:", "hangdoc.toml:4:", "hangdoc.toml:5:"]
    assert found[-1] == "and 13 more"


def test_a_wrong_value_is_shown_without_its_secret() -> None:
    (found,) = problems("[alerts.webhook]\ntoken_file = ['ghp_012345678901234567890123456789012345']")
    assert "ghp_0123" not in found


@pytest.mark.parametrize("content", [b"\xff", b"x" * (2**20 + 1), None], ids=["bytes", "large", "missing"])
def test_a_file_that_is_no_configuration(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "hangdoc.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"hangdoc\.toml: .*--print-config"):
        load(path)


def test_a_device_is_no_configuration() -> None:
    with pytest.raises(ConfigError, match="is not a regular file"):
        load(Path("/dev/zero"))


def test_which_jobs() -> None:
    jobs = parse("[jobs]\nusers = ['ann', 'bob']\nlabels = ['train_*.py']", HERE).jobs
    assert jobs.wanted("ann", None, "train_a.py")
    assert not jobs.wanted("eve", None, "train_a.py")
    assert not jobs.wanted("ann", None, "eval.py")
    assert parse("", HERE).jobs.wanted(None, None, "")
    assert not parse("[jobs]\nslurm_jobs = ['12']", HERE).jobs.wanted("ann", None, "x")


def test_the_fleet_is_that_of_watch() -> None:
    fleet = parse("[fleet]\nnodes = 'node[1-4]'\njobid = '12'", HERE).fleet
    assert fleet.options() == FleetOptions("ssh", "node[1-4]", "hangdoc", "12")


# --- secrets --------------------------------------------------------------------------------------


def test_files_with_secrets_that_everybody_can_read_are_named(tmp_path: Path) -> None:
    token, path = tmp_path / "token", tmp_path / "hangdoc.toml"
    token.write_text("x")
    token.chmod(0o644)
    path.write_text(f"[alerts.webhook]\nurl = 'https://h/hook/secret'\ntoken_file = '{token}'\n")
    path.chmod(0o644)
    assert load(path).warnings == (
        f"{path} may hold a secret in an address and every user can read it: chmod 600 {path}",
        f"{token} holds a secret and every user can read it: chmod 600 {token}",
    )
    token.chmod(0o600)
    path.chmod(0o640)
    assert load(path).warnings == ()
    token.unlink()
    assert load(path).warnings == (f"{token}: No such file or directory; alerts that need it wait",)


def test_addresses_of_apprise_must_be_there(tmp_path: Path) -> None:
    """Else its alerts would not even wait."""
    file = tmp_path / "urls"
    text = f"[alerts.apprise]\nurls_file = '{file}'"
    assert f"hangdoc.toml:2: [alerts.apprise] has no addresses: {file}: No such file or directory" in problems(text)
    file.write_text("\n".join(f"json://host{number}" for number in range(9)))
    assert "hangdoc.toml:2: [alerts.apprise] has no addresses: 9 addresses for Apprise: at most 8" in problems(text)


def test_a_secret_is_read_where_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    secret = Secret(file=str(file))
    with pytest.raises(HangdocError, match="No such file"):
        secret.read()
    file.write_text(" one\n")
    assert secret.read() == "one"
    file.write_text("two")
    assert secret.read() == "two"
    file.write_text("\n")
    with pytest.raises(HangdocError, match="is empty"):
        secret.read()
    monkeypatch.setenv("HANGDOC_TEST_TOKEN", "three")
    assert Secret(variable="HANGDOC_TEST_TOKEN").read() == "three"
    with pytest.raises(HangdocError, match="the environment has no HANGDOC_TEST_NONE"):
        Secret(variable="HANGDOC_TEST_NONE").read()
    assert not Secret()


def test_root_runs_no_command_that_others_can_change(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only for root")
    path = tmp_path / "hangdoc.toml"
    path.write_text("[actions]\ncommand = 'drain'\n")
    path.chmod(0o666)
    with pytest.raises(ConfigError, match=r"hangdoc\.toml:2: root runs no `command`"):
        load(path)
