"""Run the real command line over a stub engine: `stub_cli.py SCENE ARGUMENT...`."""

from __future__ import annotations

import os
import sys

from hangdoc import cli

SCENE = sys.argv.pop(1)
invoke = cli._invoke


def invoke_scene(arguments: list[str]) -> int:
    """Import the stub where the engine is imported: where Ctrl-C and errors are handled."""
    from tests.support import stub_engine

    stub_engine.install(SCENE)
    return invoke(arguments)


cli._invoke = invoke_scene
os.environ.pop("HANGDOC_DEBUG", None)
cli.main()
