"""Messages to systemd: sd_notify(3) as a datagram, without libsystemd."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

LONGEST_STATUS = 200  # characters shown by `systemctl status`


class Notifier:
    """Reports to the service manager that started us; does nothing without one."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self.watchdog_s = _watchdog_s(environment)  # None: the service manager expects no sign of life

    def ready(self) -> None:
        self._send("READY=1")

    def alive(self) -> None:
        """A round has finished: the watchdog starts anew."""
        if self.watchdog_s is not None:
            self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        self._send(f"STATUS={' '.join(text.split())[:LONGEST_STATUS]}")

    def reloading(self) -> None:
        """The configuration is read again; `ready` ends this (Type=notify-reload)."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if self._address[:1] not in ("/", "@"):  # a vsock address is for virtual machines
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(message.encode(), address)


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    microseconds = environment.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if microseconds.isascii() and microseconds.isdecimal() else None
