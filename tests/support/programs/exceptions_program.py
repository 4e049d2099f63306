"""The main thread waits in `finally`, within a generator; a thread waits in `__exit__`; another handles nothing."""

import json
import threading
import time


class BrokenRow(ValueError):
    pass


class Session:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        wait()


def wait():
    ready.append(threading.get_native_id())
    time.sleep(1000)
    return True


def read(row):
    if row is None:
        raise BrokenRow("row 3000 has no value", 7, None)
    return row


def train():
    for row in (1, None):
        read(row)


def look_up():
    with Session():
        {}["missing"]


def main():
    try:
        train()
    finally:
        next(row for row in (1,) if wait())


def report():
    while len(ready) < 3:
        time.sleep(0.01)
    print(json.dumps(ready), flush=True)


ready = []
for target in (look_up, wait, report):
    threading.Thread(target=target, daemon=True).start()
main()
