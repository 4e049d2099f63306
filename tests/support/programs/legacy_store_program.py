"""A legacy TCPStore: one thread answers all clients. Prints its port.

That thread asks DNS for the name of every client that connects, and answers nobody meanwhile. Here no name server is
asked: in a mount namespace of its own, /etc/resolv.conf names this host, where the question is refused at once.
"""

import ctypes
import json
import os
import tempfile
import time

if os.geteuid() == 0:
    libc = ctypes.CDLL(None, use_errno=True)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("nameserver 127.0.0.1\n")
        file.flush()
        assert libc.unshare(0x00020000) == 0, "CLONE_NEWNS"
        assert libc.mount(None, b"/", None, 1 << 18 | 1 << 14, None) == 0, "private"
        assert libc.mount(file.name.encode(), b"/etc/resolv.conf", None, 1 << 12, None) == 0, "bind"

from torch.distributed import TCPStore

store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=False)
store.set("key", b"value")
store.set("large", b"x" * (1 << 19))
print(json.dumps(store.port), flush=True)
time.sleep(600)
