"""Waits in asyncio, in the way that its argument names: queue, sleep, task or nothing."""

import asyncio
import sys
import threading


async def deliver(pause):
    while True:
        await asyncio.sleep(pause)


async def serve(how):
    if how == "queue":
        await asyncio.Queue().get()
    elif how == "task":
        await asyncio.create_task(deliver(99))
    else:
        await deliver(99)


async def main(how):
    threading.Timer(0.3, print, ("1",), {"flush": True}).start()
    await serve(how)


asyncio.run(main(sys.argv[1]))
