"""Whatever detect-secrets takes for a secret, by the forms of its detectors, is hidden."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import detect_secrets.plugins
import pytest
from detect_secrets.plugins.base import RegexBasedDetector
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hangdoc.redaction.text import redact_text

# What is left out, and why.
NO_SECRETS = {
    "IPPublicDetector": "addresses are what a diagnosis needs",
    "PrivateKeyDetector": "the words `BEGIN RSA PRIVATE KEY` alone hold none",
    ("AWSKeyDetector", 1): "any forty letters within some words of `aws` and `key`",
    ("ArtifactoryDetector", 1): "any capital word that begins like APACHE",
    ("CloudantDetector", 1): "letters without a digit behind a name such as `cl_key`, with nothing between",
    ("IbmCloudIamDetector", 0): "as above",
    ("BasicAuthDetector", 0): "`://` without a scheme; a placeholder as password",
    ("NpmDetector", 0): "takes the rest of the line with it",
    ("JwtTokenDetector", 0): "asks for valid JSON, which no expression makes",
}
PRINTABLE = st.characters(min_codepoint=32, max_codepoint=126)
FEWEST = 6  # different letters: what has less is no secret
SHORTEST = 16  # characters


def detectors() -> Iterator[Any]:
    for module in pkgutil.iter_modules(detect_secrets.plugins.__path__):
        names = vars(importlib.import_module(f"detect_secrets.plugins.{module.name}"))
        for kind in names.values():
            own = isinstance(kind, type) and issubclass(kind, RegexBasedDetector) and kind is not RegexBasedDetector
            if own and isinstance(getattr(kind, "denylist", None), (list, tuple)) and kind.__name__ not in NO_SECRETS:
                yield kind


FORMS = {
    f"{kind.__name__}-{number}": (kind(), expression)
    for kind in detectors()
    for number, expression in enumerate(kind.denylist)
    if (kind.__name__, number) not in NO_SECRETS
}


def test_the_detectors_are_there() -> None:
    assert len(FORMS) >= 25


@pytest.mark.parametrize("form", FORMS)
def test_what_another_detector_finds_is_hidden(form: str) -> None:
    detector, expression = FORMS[form]

    @settings(max_examples=15, database=None, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.from_regex(re.compile(expression.pattern, expression.flags), fullmatch=True, alphabet=PRINTABLE))
    def check(text: str) -> None:
        found = [
            one
            for one in detector.analyze_string(f"see {text} there")
            if len(set(one)) >= FEWEST and len(one) >= SHORTEST
        ]
        shown = redact_text(f"see {text} there")
        assert [one for one in found if one in shown] == []

    check()
