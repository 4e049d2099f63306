"""detect-secrets as a second opinion: it adds formats, contacts no service, and is optional."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hangdoc.redaction import detectors, text
from hangdoc.redaction.detectors import hide_detected
from hangdoc.redaction.text import HIDDEN, redact_source, redact_text
from tests.support import requirements
from tests.support.pace import within
from tests.support.paths import ROOT

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
    for cached in (text._known, text._known_source, detectors._detected, detectors._detectors):
        cached.cache_clear()


@pytest.mark.parametrize("secret", ONLY_THEIRS)
def test_secrets_known_only_to_detect_secrets_are_hidden(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line = ONLY_THEIRS[secret]
    assert secret not in redact_text(line)
    assert secret not in redact_source(line)
    assert redact_text(redact_text(line)) == redact_text(line)
    _forget()
    monkeypatch.setattr(detectors, "_detectors", _none)
    assert secret in redact_text(line), "our own patterns know it"


def _none() -> tuple[()]:
    return ()


_none.cache_clear = lambda: None  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", HONEST)
def test_names_are_kept(text: str) -> None:
    assert redact_text(text) == text


def test_false_positives_among_the_names_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond what our own patterns hide of its source (commits, identifiers of documents)."""
    requirements.met(requirements.torch())
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    files = Path(found.origin).parent.glob("**/*.py")
    words = {word for path in files for word in re.findall(r"[A-Za-z0-9+=_-]{16,}", path.read_text(errors="replace"))}
    assert len(words) > 50_000
    looked_at = [word for word in words if any(detectors._words(word))]
    assert len(looked_at) < len(words) / 100
    hidden = {word for word in looked_at if redact_text(word) != word}
    _forget()
    monkeypatch.setattr(detectors, "_detectors", _none)
    assert {word for word in hidden if redact_text(word) == word} <= {"xfailCUDAIfSM89OrLaterOnWindows"}


@pytest.mark.parametrize("said", [b"", b"[]", b'{"expressions": [["a", "(", 0, 0]], "entropies": []}', b"{}"])
def test_without_the_library_our_own_patterns_decide(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not installed, or is not as we know it."""
    monkeypatch.setattr(detectors, "_CHILD", f"import sys; sys.stdout.buffer.write({said!r}); sys.exit(1)")
    for secret, line in ONLY_THEIRS.items():
        assert secret in redact_text(line)
    assert redact_text("token=hf_" + "a1" * 17) == f"token={HIDDEN}"


def test_a_hanging_child_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detectors, "_CHILD", "import time; time.sleep(60)")
    monkeypatch.setattr(detectors, "TIMEOUT_S", 0.2)
    assert detectors._detectors() == ()


def test_the_child_imports_the_same_detect_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing from the folder in which a user started us."""
    (tmp_path / "detect_secrets.py").write_text("open('run', 'w')")
    (tmp_path / "json.py").write_text("open('run', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert len(detectors._detectors()) > 30
    assert not (tmp_path / "run").exists()


AUDITED = """
import sys

def heard(event, arguments):
    if event.startswith("socket."):
        print(event, arguments, file=sys.stderr, flush=True)

sys.addaudithook(heard)
"""


def test_no_service_is_asked_to_verify_a_secret() -> None:
    """The child opens no connection, looks nothing up, and is the only one to know of a network client."""
    command = [sys.executable, "-I", "-S", "-c", AUDITED + detectors._CHILD, *filter(None, sys.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    # urllib3 tries, at its import, whether this host can bind an IPv6 address of its own: nothing is sent.
    said = [line for line in done.stderr.splitlines() if not line.startswith(("socket.__new__", "socket.bind"))]
    assert (said, done.returncode) == ([], 0)
    assert "AWSKeyDetector" in done.stdout


ASKS = """
import sys
from hangdoc.redaction import detectors
from hangdoc.redaction.text import redact_text
print([redact_text(line) for line in sys.argv[1:]])
assert len(detectors._detectors()) > 30
print([name for name in ("detect_secrets", "requests", "urllib3") if name in sys.modules])
"""


def test_no_network_client_is_imported_here() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASKS, *ONLY_THEIRS.values()], capture_output=True, text=True, timeout=60
    )
    shown, loaded = done.stdout.splitlines()
    assert shown.count(HIDDEN) == len(ONLY_THEIRS)
    assert (loaded, done.stderr) == ("[]", "")


def test_honest_lines_do_not_start_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def started() -> None:
        raise AssertionError("it was asked")

    started.cache_clear = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setattr(detectors, "_detectors", started)
    files = [*ROOT.glob("playbooks/*/*.md"), *ROOT.glob("playbooks/*/*.py")]
    lines = [line for path in files for line in path.read_text().splitlines()]
    assert len(lines) > 5_000
    for line in lines:
        redact_text(line)
        redact_source(line)


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
    with within(0.1):
        hide_detected(text, HIDDEN)


def test_few_words_of_a_text_are_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, str]] = []

    def detected(before: str, word: str, after: str) -> bool:
        asked.append((before, word, after))
        return False

    monkeypatch.setattr(detectors, "_detected", detected)
    hide_detected(" ".join(f"aB3dE5fG7hJ9kL1m{n:04}" for n in range(1000)), HIDDEN)
    monkeypatch.undo()
    assert len(asked) == detectors.MAX_WORDS
    assert max(len("".join(one)) for one in asked) < 1024
