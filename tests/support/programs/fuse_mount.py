"""A FUSE filesystem with one file, job.py, whose server stops answering, and a process that uses the file.

fuse_mount.py FOLDER USE
    run   runs the code in the file;  map  also maps it executable, as a library is. The server is silent after SIGUSR1.
    read, fault, open   wait for that operation, which the server never answers.

The first line of output is the server's PID. The mount is in a mount namespace of this process.
"""

import ctypes
import json
import mmap
import os
import signal
import struct
import sys

# Operations of linux/fuse.h; FORGET and BATCH_FORGET take no answer.
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, INIT, BATCH_FORGET = 1, 2, 3, 14, 15, 17, 18, 26, 42
NEVER_ANSWERED = {"read": READ, "fault": READ, "open": OPEN}
STARTED = struct.pack("<IIIIHHIIHHI7I", 7, 31, 65536, 1, 12, 9, 65536, 1, 16, 0, 0, *[0] * 7)  # 1: FUSE_ASYNC_READ
CODE = b"import threading\n\ndef train(step):\n    threading.Event().wait()\n"
ENOENT, ENOSYS = 2, 38
CLONE_NEWNS, MS_REC, MS_PRIVATE, PR_SET_PDEATHSIG = 0x00020000, 1 << 14, 1 << 18, 1


def attributes(inode):
    mode, size = (0o40755, 0) if inode == 1 else (0o100755, len(CODE))
    return struct.pack("<6Q10I", inode, size, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def serve(device, never):
    """Answer the kernel; it caches nothing, so that each look-up asks again."""
    silenced = []
    signal.signal(signal.SIGUSR1, lambda *_: silenced.append(True))
    while True:
        request = os.read(device, 1 << 18)
        operation, unique, inode = struct.unpack_from("<IQQ", request, 4)
        name = request[40:].rstrip(b"\0")
        at, count = struct.unpack_from("<8xQI", request, 40) if operation == READ else (0, 0)
        bodies = {
            INIT: STARTED,
            LOOKUP: struct.pack("<4Q2I", 2, 0, 0, 0, 0, 0) + attributes(2) if name == b"job.py" else None,
            GETATTR: struct.pack("<Q2I", 0, 0, 0) + attributes(inode),
            OPEN: struct.pack("<Q2I", 0, 0, 0),
            READ: CODE[at : at + count],
            STATFS: struct.pack("<5Q4I24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0),
            RELEASE: b"",  # FLUSH is unknown here, and so never asked again
        }
        body = bodies.get(operation)
        error = 0 if body is not None else -ENOENT if operation == LOOKUP else -ENOSYS
        if operation not in (FORGET, BATCH_FORGET, never) and not silenced:
            os.write(device, struct.pack("<IiQ", 16 + len(body or b""), error, unique) + (body or b""))


folder, use = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
assert libc.unshare(CLONE_NEWNS) == 0
assert libc.mount(None, b"/", None, MS_PRIVATE | MS_REC, None) == 0
assert libc.mount(b"shop", folder.encode(), b"fuse.shop", 0, options.encode()) == 0
server = os.fork()
if server == 0:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    serve(device, NEVER_ANSWERED.get(use))
os.close(device)
path = os.path.join(folder, "job.py")
if use in NEVER_ANSWERED:
    print(json.dumps(server), flush=True)
    file = os.open(path, os.O_RDONLY)
    if use == "fault":
        mmap.mmap(file, 0, prot=mmap.PROT_READ)[0]
    os.read(file, 100)
else:
    names = {}
    with open(path, "rb") as file:
        if use == "map":
            mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
        exec(compile(file.read(), path, "exec"), names)
    print(json.dumps(server), flush=True)
    names["train"](7)
