"""What a test needs of the machine; a test whose needs are not met is skipped with the reason."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec


def met(why_not: str | None) -> None:
    """Skip the calling test for this reason, if there is one; with HANGDOC_NO_SKIP=1 fail it."""
    import pytest

    if why_not is not None:
        (pytest.fail if os.environ.get("HANGDOC_NO_SKIP") == "1" else pytest.skip)(why_not)


def commands(names: tuple[str, ...], packages: str) -> str | None:
    """Why commands cannot be run: the ones that are missing, and Debian's packages that have them."""
    missing = [name for name in names if shutil.which(name, path=SYSTEM_PATH) is None]
    return f"no {', '.join(missing)} (apt-get install {packages})" if missing else None


def torch() -> str | None:
    """Why a program that imports torch cannot be run; asked without importing it, which takes seconds."""
    return None if find_spec("torch") else "torch is an extra"


# Daemons stand in sbin, which a user's PATH may lack.
SYSTEM_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"))
