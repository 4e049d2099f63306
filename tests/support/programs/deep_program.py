"""deep_program.py DEPTH THREADS: a thread DEPTH calls deep in a recursion, and THREADS waiting threads."""

import sys
import threading

depth, threads = map(int, sys.argv[1:])
event = threading.Event()


def descend(
    left,
):
    if left:
        return (
            "the call is on a line of its own",
            descend(left - 1),
        )
    ready.set()
    event.wait()


ready = threading.Event()
sys.setrecursionlimit(depth + 1000)
threading.stack_size(1 << 30)
threading.Thread(target=descend, args=(depth,)).start()
ready.wait()
threading.stack_size(1 << 16)
for _ in range(threads):
    threading.Thread(target=event.wait, daemon=True).start()
print(1, flush=True)
event.wait()
