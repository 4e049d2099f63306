"""A fake `kubectl`: accepts exactly the two command lines that hangdoc uses, and runs the commands on this host.

Not a cluster: what is shown is that the command lines are right and that the agent works behind them. The same lines
were given to a real kubectl 1.32 with an API server that wrote down the requests. Used through `Pods`:

    pods = Pods(folder, {"w-0": host.command(), "w-1": ...})     # what to put before a command that runs in the pod
    subprocess.run(..., env={**os.environ, **pods.environment()})
    pods.calls()                                                 # every command line it was started with

Whatever else it is asked, it refuses as kubectl does, with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

NAMES = "jsonpath={.items[*].metadata.name}"
CLUSTER = "HANGDOC_TEST_CLUSTER"  # the file with the pods, in the environment


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods of one namespace that carry one label, and a `kubectl` that reaches them."""

    folder: Path
    prefixes: Mapping[str, Sequence[str]]  # of each pod: the words before a command that runs in it
    namespace: str = "ml"
    selector: str = "app=train"
    container: str = "trainer"
    phases: Mapping[str, str] | None = None  # of pods that do not run

    def environment(self) -> dict[str, str]:
        """PATH and the rest, so that a plain `kubectl` is the stand-in."""
        command = self.folder / "bin" / "kubectl"
        command.parent.mkdir(exist_ok=True)
        command.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} "$@"\n')
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
        cluster = {
            "namespace": self.namespace,
            "selector": self.selector,
            "container": self.container,
            "phases": dict(self.phases or {}),
            "prefixes": {name: list(prefix) for name, prefix in self.prefixes.items()},
            "calls": str(self._calls),
        }
        file = self.folder / "cluster.json"
        file.write_text(json.dumps(cluster))
        return {CLUSTER: str(file), "PATH": os.pathsep.join((str(command.parent), os.environ.get("PATH", os.defpath)))}

    def calls(self) -> list[list[str]]:
        """The command lines so far, without `kubectl` itself."""
        return [json.loads(line) for line in self._calls.read_text().splitlines()] if self._calls.exists() else []

    def forget_calls(self) -> None:
        self._calls.unlink(missing_ok=True)

    @property
    def _calls(self) -> Path:
        return self.folder / "kubectl-calls.jsonl"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _refuse(f"error: {message}")


def _refuse(message: str, code: int = 1) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(code)


def main(arguments: list[str], cluster: dict[str, Any]) -> None:
    """What kubectl would do with these arguments."""
    with Path(cluster["calls"]).open("a") as calls:
        calls.write(json.dumps(arguments) + "\n")
    parser = _Parser(prog="kubectl", allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True)
    get = verbs.add_parser("get", allow_abbrev=False)
    get.add_argument("kind", choices=["pods"])
    get.add_argument("-l", "--selector", required=True)
    get.add_argument("-o", "--output", choices=["json", NAMES], required=True)
    get.add_argument("--field-selector", choices=["status.phase=Running"])
    execute = verbs.add_parser("exec", allow_abbrev=False)
    execute.add_argument("pod")
    execute.add_argument("-i", "--stdin", action="store_true")
    execute.add_argument("-c", "--container")
    for verb in (get, execute):
        verb.add_argument("-n", "--namespace", default="default")
    # What stands behind `--` is the command's own; without it kubectl would take its options for itself.
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:end])
    if options.verb == "get":
        _get(options, cluster)
    else:
        _exec(options, arguments[end + 1 :], cluster)


def _get(options: argparse.Namespace, cluster: dict[str, Any]) -> None:
    found = options.namespace == cluster["namespace"] and options.selector == cluster["selector"]
    phases = {name: cluster["phases"].get(name, "Running") for name in (cluster["prefixes"] if found else ())}
    if options.field_selector:
        phases = {name: phase for name, phase in phases.items() if phase == "Running"}
    if options.output == NAMES:
        print(*phases, end="")
        return
    items = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": cluster["namespace"]},
            "spec": {"nodeName": "worker", "containers": [{"name": cluster["container"]}]},
            "status": {"phase": phase},
        }
        for name, phase in phases.items()
    ]
    print(json.dumps({"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}}))


def _exec(options: argparse.Namespace, command: list[str], cluster: dict[str, Any]) -> NoReturn:
    if not command:
        _refuse("error: you must specify at least one command for the container")
    pod, phase = options.pod, cluster["phases"].get(options.pod, "Running")
    if options.namespace != cluster["namespace"] or pod not in cluster["prefixes"]:
        _refuse(f'Error from server (NotFound): pods "{pod}" not found')
    if phase != "Running":
        _refuse(f"error: cannot exec into a container in a completed pod; current phase is {phase}")
    if options.container not in (None, cluster["container"]):
        _refuse(f"Error from server (BadRequest): container {options.container} is not valid for pod {pod}")
    if not options.stdin:  # then the command has none
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    line = [*cluster["prefixes"][pod], *command]
    try:
        os.execvp(line[0], line)
    except FileNotFoundError:
        _refuse(f'exec: "{line[0]}": executable file not found in $PATH: unknown', 127)


if __name__ == "__main__":
    main(sys.argv[1:], json.loads(Path(os.environ[CLUSTER]).read_text()))
