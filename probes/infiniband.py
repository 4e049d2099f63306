"""Probe `infiniband`: state and error counters of each InfiniBand and RoCE port.

From /sys/class/infiniband (Documentation/ABI/stable/sysfs-class-infiniband). No adapter: no record.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hangdoc.evidence.network import Infiniband, Port
from probes import Observation, Request, Tier

ROOT = Path("/sys/class/infiniband")
# Error counters, constant on a healthy port: from `counters` (port) or `hw_counters` (RoCE).
ERROR_COUNTERS = (
    *("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_xmit_discards"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors", "port_rcv_remote_physical_errors"),
    *(
        "local_ack_timeout_err",
        "packet_seq_err",
        "out_of_sequence",
        "rnr_nak_retry_err",
        "req_transport_retries_exceeded",
    ),
)
_LONGEST = 64


class InfinibandProbe:
    name = "infiniband"
    scope = "host"
    tier = Tier.EXAMINE
    needs = "nothing"
    record = Infiniband
    order = 50
    steady = False

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root

    def observe(self, request: Request) -> Observation:
        ports = tuple(_ports(self._root))
        return Observation({}, Infiniband(ports) if ports else None)


def _ports(root: Path) -> Iterator[Port]:
    for adapter in _entries(root):
        interface = next(iter(_entries(adapter / "device" / "net")), None)
        for folder in _entries(adapter / "ports"):
            if folder.name.isdecimal():
                yield _port(adapter.name, folder, interface.name if interface else None)


def _port(adapter: str, folder: Path, interface: str | None) -> Port:
    counted = {name: _count(folder, name) for name in ERROR_COUNTERS}
    words = (_count(folder, name) for name in ("port_xmit_data", "port_rcv_data"))
    sent, received = (None if count is None else 4 * count for count in words)  # counted in units of 4 bytes
    return Port(
        adapter,
        int(folder.name),
        _named(folder / "state"),
        _named(folder / "phys_state"),
        _text(folder / "link_layer"),
        _text(folder / "rate"),
        interface,
        sent,
        received,
        tuple((name, count) for name, count in counted.items() if count),
    )


def _entries(folder: Path) -> list[Path]:
    with suppress(OSError):
        return [folder / name for name in sorted(os.listdir(folder))]
    return []


def _named(file: Path) -> str | None:
    """`4: ACTIVE` as `ACTIVE`."""
    text = _text(file)
    return text.rpartition(":")[2].strip() if text else None


def _count(folder: Path, name: str) -> int | None:
    for group in ("counters", "hw_counters"):
        text = _text(folder / group / name)
        if text and text.isdecimal():
            return int(text)
    return None


def _text(file: Path) -> str | None:
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            return opened.read(_LONGEST).strip() or None
    except OSError:
        return None


PROBE = InfinibandProbe()
