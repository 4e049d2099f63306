"""What is hidden, and what must not be."""

from __future__ import annotations

import pytest

from hangdoc.redaction.text import HIDDEN, LONGEST, redact, redact_identifier, redact_source, redact_words
from tests.support.pace import within

SECRET = [
    ("api_key", '"abc"'),
    ("hfToken", '"x"'),
    ("password", '"correct horse"'),
    ("aws_secret_access_key", '"w"'),
    ("auth", '("user", "pw")'),
    ("credentials", '{"user": "me"}'),
    ("x", '"sk-proj-abcdefghijklmnop"'),
    ("x", '"hf_abcdefghijklmnopqrst"'),
    ("x", '"AKIAIOSFODNN7EXAMPLE"'),
    ("x", '"ghp_0123456789abcdefghij"'),
    ("x", '"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc"'),
    ("x", '"wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY1"'),
    ("x", '"d41d8cd98f00b204e9800998ecf8427e"'),
    ("x", '"-----BEGIN RSA PRIVATE KEY-----"'),
]

PARTLY = [
    ("url", '"postgres://me:hunter2@db/x"', "hunter2", "postgres://me:"),
    ("config", '{"lr": 0.1, "api_key": "abc"}', "abc", '"lr": 0.1'),
    ("command", '"train --token=abc --lr 1"', "abc", "--lr 1"),
    ("headers", "{'Authorization': 'Bearer abc'}", "Bearer abc", "Authorization"),
    ("cut", '{"secret": "abcdef...', "abcdef", "secret"),
    ("header", "Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz", "Authorization"),
    ("header", "Set-Cookie: session=abcdef; Path=/", "abcdef", "Path=/"),
    ("command", "train.py --hub-token abc --lr 1", "abc", "--lr 1"),
    ("command", "train.py --api-key=abc --lr 1", "abc", "--lr 1"),
    ("url", "redis://me:p@ss@host:6379/0", "ss@", "@host:6379/0"),
    ("path", "/home/me/aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dF/x/y", "aB3dE5", "/home/me"),
]

PLAIN = [
    ("num_tokens", "512"),
    ("pad_token_id", "0"),
    ("tokenizer", '"gpt2"'),
    ("key", "<Tensor at 0x7f00>"),
    ("token", "None"),
    ("keyboard", '"qwerty"'),
    ("author", '"me"'),
    ("monkey", '"x"'),
    ("path", '"/data/ImageNet2012/train/n01440764/n01440764_10026.JPEG"'),
    ("model", '"meta-llama/Llama-2-70b-chat-hf"'),
    ("config", '{"max_tokens": 128, "tokenizer": "gpt2"}'),
    ("stats", '{"tokens": 5, "token_rate": 1.5e-3, "author": "me"}'),
    ("layer", '"transformer.h.11.attn.c_proj.weight"'),
    ("url", '"tcp://10.0.0.1:29500"'),
    ("path", "/mnt/Data2/users/JohnSmith9/projects/LLM_Train_7b/src/train.py"),
    ("command", "train.py --max-tokens 512 --tokenizer gpt2 --token-dropout --seed 1"),
]


@pytest.mark.parametrize(("name", "text"), SECRET)
def test_secrets_are_hidden(name: str, text: str) -> None:
    shown = redact(name, text)
    assert HIDDEN in shown
    assert text.strip("\"'")[:12] not in shown


@pytest.mark.parametrize(("name", "text", "secret", "kept"), PARTLY)
def test_a_secret_within_a_text(name: str, text: str, secret: str, kept: str) -> None:
    shown = redact(name, text)
    assert secret not in shown
    assert kept in shown


@pytest.mark.parametrize(("name", "text"), PLAIN)
def test_what_a_diagnosis_needs_is_kept(name: str, text: str) -> None:
    assert redact(name, text) == text


FRAGMENTS = (
    "a://b:",
    "://a:b",
    "a:b@",
    ":@",
    "?token=",
    "&sig=",
    "password=",
    "password: a ",
    "password is ",
    "pass phrase ",
    "token [",
    "token(",
    "auth: str = ",
    "--token ",
    "--token=",
    "x-",
    "cookie: ",
    "Bearer ",
    "Basic aaaa",
    "A_KEY",
    "_KEY",
    'key "',
    'f"',
    '"""',
    '\\"',
    '"a" + ',
    'login("',
    "-----BEGIN ",
    "eyJ.",
    "AAAA.",
    "1//0",
    "$6$",
    "bot1234567:",
    "0123456789abcdef",
    "aA1",
    "a/",
    "A1b/",
    "mysql ",
    "curl -u ",
    "git config x ",
    "echo a | sudo -S ",
    "- ",
    "| ",
    "(",
    "{",
    " ",
    "\n",
    "\u0130token",
)


@pytest.mark.parametrize("fragment", FRAGMENTS)
@pytest.mark.slow("megabytes of text")
def test_long_texts_cost_little(fragment: str) -> None:
    """CPU time that hostile text takes grows with its length and no faster."""
    text = fragment * (LONGEST // len(fragment))
    with within(3.0):
        for one in (text, f"{text[:-20]} password=x"):
            for shown in (redact("x", one), redact_source(one), redact_identifier(one), *redact_words(one.split(" "))):
                assert len(shown) <= 4 * LONGEST


def test_a_long_command_line_costs_little() -> None:
    with within(3.0):
        redact_words(["--token", "mysql", "-pabcd", "a=b"] * 10_000)
