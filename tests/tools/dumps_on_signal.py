"""Runs a script as `python script` would, with faulthandler's dump of all threads on SIGUSR1 (to stderr).

torchrun ... tests/tools/dumps_on_signal.py SCRIPT [ARGS]
"""

import faulthandler
import runpy
import signal
import sys

if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
