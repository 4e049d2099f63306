"""Run a script with faulthandler on SIGUSR1, which dumps all threads to stderr.

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
