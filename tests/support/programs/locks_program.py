"""Threads that wait: for locks in a cycle, for their own lock, for one whose owner has ended, and for other things."""

import json
import queue
import threading
import time

once = threading.Lock()
abandoned = threading.RLock()
columns = [threading.Lock() for _ in range(4)]


class Pair:
    def __init__(self):
        self.first = threading.Lock()
        self.second = threading.RLock()


class Part:
    def __init__(self, other=None):
        self.lock = threading.Lock()
        self.other = other


def save(snapshots, met):
    with snapshots.lock:
        met.wait()
        with snapshots.other.lock:
            pass


def note(snapshots, progress, met):
    with progress.lock:
        met.wait()
        with snapshots.lock:
            pass


def forward(pair, met):
    with pair.first:
        met.wait()
        with pair.second:
            pass


def backward(pair, met):
    pair.second.acquire()
    met.wait()
    pair.first.acquire()
    pair.first.release()
    pair.second.release()


def twice():
    with once:
        enter_again()


def enter_again():
    with once:
        pass


def leave():
    abandoned.acquire()


def orphan(gone):
    gone.wait()
    with abandoned:
        pass


def column(i):
    columns[i].acquire()
    with columns[i]:
        pass


def patient(lock):
    lock.acquire(timeout=100)


def queued():
    queue.Queue().get()


def joining(thread):
    thread.join()


def sleepy():
    time.sleep(100)


def start(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, name=function.__name__, daemon=True)
    thread.start()
    return thread


taken = threading.Lock()
taken.acquire()
pair, met, gone = Pair(), threading.Barrier(2), threading.Event()
snapshots, together = Part(Part()), threading.Barrier(2)
threads = [start(forward, pair, met), start(backward, pair, met), start(twice), start(orphan, gone), start(column, 2)]
threads += [start(patient, taken), start(queued), start(sleepy)]
threads.append(start(joining, threads[-1]))
threads += [start(save, snapshots, together), start(note, snapshots, snapshots.other, together)]
start(leave).join()  # after all the others: the next thread would be taken for it
gone.set()
print(json.dumps({thread.name: thread.native_id for thread in threads}), flush=True)
time.sleep(100)
