"""detect-secrets as a second opinion: what it adds, that it asks nobody, and that it is not needed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import needs
from probes import _detectors, _redact
from probes._detectors import hide_detected
from probes._redact import HIDDEN, redact_source, redact_text

# Kinds that our own patterns do not know, each with a line that shows it.
ONLY_THEIRS = {
    "AP5abc9def8ghi7jklm": "upload to artifactory with AP5abc9def8ghi7jklm",  # Artifactory's encrypted password
    "k3y9x0q2m8w7t5z1": 'db_key = "k3y9x0q2m8w7t5z1"',  # by their keyword
    "q8w7e6r5t4y3u2i1": 'settings["database_key"] = "q8w7e6r5t4y3u2i1"',
    "a1b2c3d4e5g6h7i8j9k0a1b2c3d4e5g6h7i8j9k0": "aws key id 'a1b2c3d4e5g6h7i8j9k0a1b2c3d4e5g6h7i8j9k0'",
    "xQ3vT9bLr7Zk2WmYp5HdNc8s": "the login was xQ3vT9bLr7Zk2WmYp5HdNc8s",  # by entropy; ours asks for 32 letters
}
HONEST = (
    '"sm90_xmma_gemm_bf16bf16_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel"',
    '"AdaptiveAvgPool1dBackward0"',
    '"FullyShardedDataParallel2dMesh4"',
    '"XlmRobertaForSequenceClassification2Labels4x"',
    '"_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEEEEviT0_T1_"',
    "/data/cache/ab/xQ3vT9bLr7Zk2WmYp5HdNc8s.py",
    "layer3f2504e04f8911d39a0c0305e82c3301",
)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    _forget()
    yield
    _forget()


def _forget() -> None:
    for cached in (_redact._known, _redact._known_source, _detectors._detected, _detectors._detectors):
        cached.cache_clear()


@pytest.mark.parametrize("secret", ONLY_THEIRS)
def test_what_only_their_detectors_know_is_hidden(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line = ONLY_THEIRS[secret]
    assert secret not in redact_text(line)
    assert secret not in redact_source(line)
    assert redact_text(redact_text(line)) == redact_text(line)
    _forget()
    monkeypatch.setattr(_detectors, "_detectors", _none)
    assert secret in redact_text(line), "our own patterns know it"


def _none() -> tuple[()]:
    return ()


_none.cache_clear = lambda: None  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", HONEST)
def test_names_are_kept(text: str) -> None:
    assert redact_text(text) == text


def test_what_they_mask_by_mistake_among_the_words_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond what our own patterns hide of its source (commits, identifiers of documents)."""
    needs.met(needs.torch())
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    files = Path(found.origin).parent.glob("**/*.py")
    words = {word for path in files for word in re.findall(r"[A-Za-z0-9+=_-]{16,}", path.read_text(errors="replace"))}
    assert len(words) > 50_000
    looked_at = [word for word in words if any(_detectors._words(word))]
    assert len(looked_at) < len(words) / 100
    hidden = {word for word in looked_at if redact_text(word) != word}
    _forget()
    monkeypatch.setattr(_detectors, "_detectors", _none)
    assert {word for word in hidden if redact_text(word) == word} <= {"xfailCUDAIfSM89OrLaterOnWindows"}


def test_without_the_library_our_own_patterns_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "detect_secrets.core.plugins.util", None)  # as import has it where there is none
    for secret, line in ONLY_THEIRS.items():
        assert secret in redact_text(line)
    assert redact_text("token=hf_" + "a1" * 17) == f"token={HIDDEN}"


def test_a_detector_that_fails_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(text: str) -> Iterator[str]:
        raise RuntimeError(text)

    known = _detectors._detectors()
    monkeypatch.setattr(_detectors, "_detectors", lambda: [fails, *known])
    assert hide_detected(ONLY_THEIRS["k3y9x0q2m8w7t5z1"], HIDDEN) == f'db_key = "{HIDDEN}"'
    monkeypatch.undo()


ASKS_NOBODY = """
import sys

def heard(event, arguments):
    if event.startswith("socket."):
        print(event, arguments, flush=True)

sys.addaudithook(heard)
from probes._redact import redact_text
assert "requests" not in sys.modules, "loaded before there was anything to ask it"
for line in sys.argv[1:]:
    redact_text(line)
assert "detect_secrets" in sys.modules
import requests
import requests.adapters
"""


def test_nobody_is_asked_whether_a_secret_is_one() -> None:
    """No socket is opened from the import on: neither for a look-up nor to verify."""
    from secret_kinds import kinds

    lines = [*ONLY_THEIRS.values(), *(one.text for one in kinds("log", "url", "source"))]
    done = subprocess.run([sys.executable, "-c", ASKS_NOBODY, *lines], capture_output=True, text=True, timeout=60)
    # urllib3 tries, at its import, whether this host can bind an IPv6 address of its own: nothing is sent.
    said = [line for line in done.stdout.splitlines() if not line.startswith(("socket.__new__", "socket.bind"))]
    assert (said, done.stderr, done.returncode) == ([], "", 0)


def test_nothing_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

    def verified(*arguments: object, **named: object) -> None:
        raise SystemExit(f"{arguments} {named} were verified")  # no Exception: nobody takes it for a failed detector

    kinds: list[Any] = list(get_mapping_from_secret_type_to_class().values())
    for kind in kinds:
        monkeypatch.setattr(kind, "verify", verified)
    monkeypatch.setattr("requests.sessions.Session.request", verified)
    for line in ONLY_THEIRS.values():
        assert HIDDEN in redact_text(line)


LOADS = """
import sys
from probes._redact import redact_source, redact_text
for line in sys.stdin:
    redact_text(line)
    redact_source(line)
print([name for name in ("detect_secrets", "requests") if name in sys.modules])
"""


def test_honest_lines_do_not_load_it() -> None:
    from dossiers import ROOT

    files = [*ROOT.glob("playbooks/*/*.md"), *ROOT.glob("playbooks/*/*.py"), *ROOT.glob("hangdoc/**/*.py")]
    lines = "\n".join(path.read_text() for path in files)
    done = subprocess.run([sys.executable, "-c", LOADS], input=lines, capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize(
    "text",
    [
        "aB3dE5fG7hJ9kL1m" * 1000,
        "aB3dE5fG7hJ9kL1m " * 1000,
        ("://a:b@ secret=x'" * 12 + "aB3dE5fG7hJ9kL1m ") * 70,
        'password = "' * 1000 + "aB3dE5fG7hJ9kL1m",
        "cl-password" * 100 + ' "aB3dE5fG7hJ9kL1m',
        "//" + "/:" * 4000 + "aB3dE5fG7hJ9kL1m",
    ],
)
def test_a_hostile_text_costs_little(text: str) -> None:
    hide_detected(ONLY_THEIRS["k3y9x0q2m8w7t5z1"], HIDDEN)  # the import
    began = time.process_time()
    hide_detected(text, HIDDEN)
    assert time.process_time() - began < 0.1


def test_few_words_of_a_text_are_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, str]] = []

    def detected(before: str, word: str, after: str) -> bool:
        asked.append((before, word, after))
        return False

    monkeypatch.setattr(_detectors, "_detected", detected)
    hide_detected(" ".join(f"aB3dE5fG7hJ9kL1m{n:04}" for n in range(1000)), HIDDEN)
    monkeypatch.undo()
    assert len(asked) == _detectors.MOST_WORDS
    assert max(len("".join(one)) for one in asked) < 1024
