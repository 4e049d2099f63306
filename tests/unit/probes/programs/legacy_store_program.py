"""A legacy TCPStore: one thread answers all clients. Writes its port."""

import json
import time

from torch.distributed import TCPStore

store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=False)
store.set("key", b"value")
store.set("large", b"x" * (1 << 19))
print(json.dumps(store.port), flush=True)
time.sleep(600)
