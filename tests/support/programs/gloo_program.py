"""The first rank of a gloo group; no other rank ever joins."""

import json
import os
import socket
import sys
import threading
import time

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
with socket.create_server(("127.0.0.1", 0)) as probe:
    port = probe.getsockname()[1]

import torch.distributed as dist

own = dist.TCPStore("127.0.0.1", port, int(sys.argv[1]), True, wait_for_workers=False)
group = {"store": own, "rank": 0, "world_size": int(sys.argv[1])}
threading.Thread(target=dist.init_process_group, args=("gloo",), kwargs=group, daemon=True).start()
other = dist.TCPStore("127.0.0.1", port, is_master=False)  # its own waits for the other rank
other.wait(["0//cpu//0/0"])
print(json.dumps(port), flush=True)
time.sleep(60)
