"""Run torchrun in a pseudo-terminal, as in a shell: in_terminal.py RANKS SCRIPT [ARGUMENT...]"""

import os
import pty
import sys

ranks, script, *arguments = sys.argv[1:]
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), script)
torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.executable, [*torchrun, path, *arguments])
while True:
    try:
        text = os.read(terminal, 4096)
    except OSError:
        break
    if not text:
        break
    os.write(1, text)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
