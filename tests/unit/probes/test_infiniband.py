"""Probe `infiniband` on a tree of files laid out as the kernel does."""

from __future__ import annotations

from pathlib import Path

from hangdoc.evidence.network import Infiniband, Port
from probes import Request, Tier
from probes.infiniband import InfinibandProbe


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def look(root: Path) -> object:
    return InfinibandProbe(root).observe(Request([], Tier.EXAMINE)).host


def test_ports(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "mlx5_0/ports/1/state": "4: ACTIVE\n",
            "mlx5_0/ports/1/phys_state": "5: LinkUp\n",
            "mlx5_0/ports/1/link_layer": "InfiniBand\n",
            "mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
            "mlx5_0/ports/1/counters/port_xmit_data": "1000\n",
            "mlx5_0/ports/1/counters/port_rcv_data": "250\n",
            "mlx5_0/ports/1/counters/symbol_error": "3\n",
            "mlx5_0/ports/1/counters/link_downed": "0\n",
            "mlx5_0/ports/1/hw_counters/local_ack_timeout_err": "7\n",
            "mlx5_0/device/net/ibs1/mtu": "4092\n",
            "mlx5_1/ports/1/state": "1: DOWN\n",
            "mlx5_1/ports/1/phys_state": "2: Polling\n",
        },
    )
    assert look(tmp_path) == Infiniband(
        (
            Port(
                "mlx5_0", 1, "ACTIVE", "LinkUp", "InfiniBand", "400 Gb/sec (4X NDR)", "ibs1", 4000, 1000,
                (("symbol_error", 3), ("local_ack_timeout_err", 7)),
            ),
            Port("mlx5_1", 1, "DOWN", "Polling"),
        )
    )  # fmt: skip


def test_a_host_without_adapters_loses_nothing(tmp_path: Path) -> None:
    assert look(tmp_path) is None
    assert look(tmp_path / "nothing") is None


def test_files_that_say_nonsense(tmp_path: Path) -> None:
    write(tmp_path, {"rxe0/ports/1/state": "", "rxe0/ports/1/counters/symbol_error": "N/A", "rxe0/ports/x/state": "4"})
    assert look(tmp_path) == Infiniband((Port("rxe0", 1),))
