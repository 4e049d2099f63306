"""What is hidden, and what must not be."""

from __future__ import annotations

import pytest

from probes._redact import HIDDEN, redact

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


def test_long_texts_cost_little() -> None:
    for text in ("x" * 20000, "token" * 4000, "a:" * 10000, "A1b" * 7000):
        redact("x", text)
