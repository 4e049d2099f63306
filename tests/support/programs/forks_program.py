"""A process with a forked helper, like a dataloader worker."""

import json
import multiprocessing
import time


def load_samples(worker):
    time.sleep(1000 + worker)


if __name__ == "__main__":
    helper = multiprocessing.get_context("fork").Process(target=load_samples, args=(3,), daemon=True)
    helper.start()
    print(json.dumps(helper.pid), flush=True)
    helper.join()
