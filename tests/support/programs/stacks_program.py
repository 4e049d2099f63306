"""Two waiting threads, a method, a nested function, and variables of many kinds."""

import json
import threading
import time


class Trainer:
    def fit(self, shard, api_token="not-for-your-eyes"):
        step, rate, done, nothing, name = 7, 0.5, False, None, "resnet"
        pair, table, large, endless = (1, 2), {"lr": 0.1}, 2**90, float("inf")
        long = "a" * 300
        hostile = "[red]\x1b[31m</script>"
        kept = (step, rate, done, nothing, name, pair, table, large, endless, long, hostile)

        def wait():
            held = len(kept)
            ready.set()
            time.sleep(1000 * held)

        wait()


ready = threading.Event()
threading.Thread(target=Trainer().fit, args=([1, 2, 3],), name="helper", daemon=True).start()
ready.wait()
ready.clear()
threading.Timer(0.05, lambda: (ready.wait(), print(json.dumps("ready"), flush=True))).start()
Trainer().fit(list(range(12)))
