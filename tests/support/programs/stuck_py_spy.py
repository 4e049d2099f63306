"""A py-spy that never releases the process whose native frames it is asked for: stuck_py_spy.py REAL ARGUMENT..."""

import ctypes
import os
import sys
import time

PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207

if "--native" not in sys.argv:
    os.execv(sys.argv[1], sys.argv[1:])
libc = ctypes.CDLL(None, use_errno=True)
pid = sys.argv[-1]
for tid in map(int, os.listdir(f"/proc/{pid}/task")):
    libc.ptrace(PTRACE_SEIZE, tid, None, None)
    libc.ptrace(PTRACE_INTERRUPT, tid, None, None)
time.sleep(600)
