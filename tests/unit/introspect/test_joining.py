from __future__ import annotations

import os
import subprocess
import sys

from hangdoc.introspect.joining import joins_children
from hangdoc.system import procfs
from tests.support.polling import until

PARENT = """
import multiprocessing, time

def work(): time.sleep(600)

if __name__ == "__main__":
    made = [multiprocessing.get_context("fork").Process(target=work) for _ in range(2)]
    for one in made: one.start()
    print("ready", flush=True)
    for one in made: one.join()
"""


def test_a_parent_that_joins_what_it_has_started() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "ready\n"
            until(lambda: joins_children(parent.pid), within_s=10.0)
            children = procfs.children(parent.pid)
            assert len(children) == 2
            assert not any(joins_children(child) for child in children)
        finally:
            for pid in (*procfs.children(parent.pid), parent.pid):
                os.kill(pid, 9)


def test_nothing_is_known_of_a_process_that_is_no_python() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            assert not joins_children(process.pid)
        finally:
            process.kill()
