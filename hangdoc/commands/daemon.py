"""`hangdoc daemon`: watches every job of this node as a service."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from hangdoc.commands.output import write

STDERR = 2


def command(
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Configuration, in TOML. Read again on SIGHUP.", dir_okay=False),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state",
            metavar="DIR",
            file_okay=False,
            help="Folder for incidents, state and undelivered alerts (default: /var/lib/hangdoc for root).",
            show_default=False,
        ),
    ] = None,
    check_config: Annotated[
        bool, typer.Option("--check-config", help="Check the configuration and exit: 0 valid, 64 not.")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the default configuration, with comments, and exit.")
    ] = False,
) -> int:
    """Watch every training job on this node, for weeks, as a service.

    Jobs may come and go. Each hang becomes one incident: `hangdoc incidents` lists them. Without a configuration,
    incidents are kept and nobody is alerted. A job with HANGDOC=off in its environment is left alone.

    \b
    hangdoc daemon --print-config > /etc/hangdoc/hangdoc.toml
    hangdoc daemon --config /etc/hangdoc/hangdoc.toml --check-config
    hangdoc daemon --config /etc/hangdoc/hangdoc.toml
    hangdoc daemon --state ~/hangdoc                          without root: your own jobs

    SIGHUP reads the configuration again, SIGTERM ends the daemon. See docs/daemon.md for systemd.

    Exit codes: 0 ended by SIGTERM, 1 failed, 3 cannot start, 64 wrong usage or configuration.
    """
    from hangdoc.daemon.config import DEFAULT, Config, load

    if print_config:
        write(DEFAULT.rstrip())
        return 0
    if check_config and config is None:
        raise typer.BadParameter("--check-config needs --config FILE", param_hint="--check-config")
    loaded = load(config) if config else Config()
    for warning in loaded.warnings:
        typer.echo(warning, err=True)
    if check_config:
        write(f"{config}: valid")
        return 0
    from hangdoc.daemon.log import Log, is_journal
    from hangdoc.daemon.notify import Notifier
    from hangdoc.daemon.run import run
    from hangdoc.incident.store import default_root

    root = state or (Path(loaded.daemon.state_dir) if loaded.daemon.state_dir else default_root())
    log = Log(sys.stderr, is_journal(os.environ, STDERR))
    return run(config, loaded, root.absolute(), log, Notifier(os.environ))
