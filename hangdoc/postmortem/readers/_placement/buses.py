"""Lists of the GPUs of a host with their PCI addresses, as nvidia-smi, dcgmi, rocm-smi and people write them.

`2, 00000000:63:00.0` (nvidia-smi --query-gpu=index,pci.bus_id), `|   2  NVIDIA A100 On | 00000000:63:00.0 Off |`,
`GPU 2: NVIDIA A100 (UUID: GPU-1be0...)` (nvidia-smi -L) with the kernel's `GPU at PCI:0000:63:00: GPU-1be0...`,
`GPU[2] : PCI Bus: 0000:63:00.0` (rocm-smi --showbus), `| 2 | Name: ... |` above `PCI Bus ID: ...` (dcgmi discovery -l),
`63:00.0 3D controller: NVIDIA Corporation GA100 (rev a1)` (lspci; CUDA numbers GPUs of one kind in this order).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

from hangdoc.postmortem.readers._host_context import HostContext
from hangdoc.postmortem.readers._host_names import NAME, is_host_name

MAX_LINE = 1_000  # characters
MAX_GPUS = 4_096
MAX_INDEX = 64  # GPUs of a host
_ADDRESS = r"(?:[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?|[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
_BUS = re.compile(rf"(?<![\w.:])({_ADDRESS})(?![\w.:])")
_UUID = re.compile(r"\bGPU-[0-9a-f]{8}-[0-9a-f-]{4,32}")
_INDEX = re.compile(
    r"[\s|>*-]{0,8}(?:\[?(?:global )?rank[ :=#_]{0,2}\d{1,5}\]?\s{0,2}(?:->|=>|\u2192|:|=|,|on|uses|has)\s{0,2})?"
    r"(?:(?:gpu|cuda|device|nvidia|card|idx|index)[ :#=_]{0,2})?[\[(]?(\d{1,2})[\])]?(?=[\s,:=|>\u2192-])"
    r"(?!:[0-9a-fA-F]{2}[.:])(?! ?[:.]?\d{1,2}:\d)",
    re.IGNORECASE,
)
_HOST = re.compile(rf"[\s|>\[(#*-]{{0,6}}({NAME})(?:[\])]?:\s|\]?\s{{1,12}}(?=\S))")
_SEGMENTS = re.compile(r"\s\|\s|;\s|\s/\s")
_TABLE = re.compile(rf"\|\s{{1,6}}(\d{{1,2}})\s{{1,4}}\S[^|]{{0,80}}\|\s{{0,6}}({_ADDRESS})\s[^|]{{0,30}}\|")
_ENTRY = re.compile(r"\s{0,6}\|\s{0,4}(\d{1,2})\s{0,8}\|\s{0,4}Name:")
_OF_ENTRY = re.compile(rf"PCI Bus ID\s{{0,4}}:\s{{0,4}}({_ADDRESS})")
_LISTED = re.compile(r"\s{0,8}GPU (\d{1,2}): .{0,80}\(UUID: (GPU-[0-9a-f-]{8,40})\)")
# nvidia-smi of a GPU that is gone: `Unable to determine the device handle for GPU6: 0000:C1:00.0: Unknown Error`
_GONE = re.compile(rf"\bdevice handle for GPU ?(\d{{1,2}}): ({_ADDRESS})")
_OF_KERNEL = re.compile(rf"GPU at (?:PCI:)?({_ADDRESS}): (GPU-[0-9a-f-]{{8,40}})")
LSPCI = re.compile(
    rf"[\s>]{{0,8}}({_ADDRESS}) (?:VGA compatible controller|3D controller|Display controller|Processing accelerators)"
    r"(?: \[\d{4}\])?: ((?:NVIDIA|Advanced Micro Devices)\b.{1,120}?)(?: \(rev \w\w\))?\s*$"
)
_NO_LIST = re.compile(
    r"\b(?:Xid|NVRM|pcieport|AER|mlx\d|busId|NIC|ethernet|InfiniBand|nvme)\b|(?<![\w:])\d\d:\d\d:\d\d"
)


def bus_of(address: str) -> str:
    """A PCI address without its domain and function: `9b:00` for `00000000:9B:00.0`."""
    return ":".join(address.lower().partition(".")[0].split(":")[-2:])


def bus_of_number(number: int) -> str | None:
    """The same for the number that NCCL prints as busId (nccl: src/misc/utils.cc): `9b:00` for 0x9b000.

    None: of another domain than the first, where GPUs of one host may differ by their domain alone.
    """
    return None if number >> 20 else f"{number >> 12:02x}:{number >> 4 & 0xFF:02x}"


class BusList:
    """Takes the lines of a text in order."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._rows: list[tuple[str | None, str, int]] = []  # host, PCI bus and device, GPU
        self._listed: list[tuple[str | None, str, int]] = []  # host, UUID, GPU
        self._by_bus: dict[str | None, dict[str, str]] = {}  # host -> PCI bus and device -> kind of GPU
        self._of_uuid: dict[str, str] = {}  # UUID -> PCI bus and device
        self._entry: int | None = None  # GPU that an entry of dcgmi describes

    def feed(self, line: str, number: int) -> None:
        if len(line) > MAX_LINE or len(self._rows) + len(self._listed) >= MAX_GPUS:
            return
        if "GPU-" in line and (found := _OF_KERNEL.search(line)):
            self._of_uuid.setdefault(found[2], bus_of(found[1]))
        elif "(UUID: GPU-" in line and (found := _LISTED.search(line)):
            self._listed.append((self._host(line, number), found[2], int(found[1])))
        elif "device handle" in line and (gone := _GONE.search(line)):
            self._rows.append((self._host(line, number), bus_of(gone[2]), int(gone[1])))
        elif entry := _ENTRY.match(line):
            self._entry = int(entry[1])
        elif self._entry is not None and (found := _OF_ENTRY.search(line)):
            self._rows.append((self._host(line, number), bus_of(found[1]), self._entry))
            self._entry = None
        elif "controller: " in line or "accelerators: " in line:
            if found := LSPCI.match(line):
                self._by_bus.setdefault(self._host(line, number), {})[bus_of(found[1])] = found[2]
        elif ":" in line and _BUS.search(line) and not _NO_LIST.search(line):
            host = self._host(line, number)
            self._rows += [(host, bus, gpu) for bus, gpu in _gpus(line)]

    @property
    def found(self) -> Iterator[tuple[str | None, str, int]]:
        """The host, the PCI bus and device, and the number of each GPU."""
        yield from self._rows
        for host, uuid, gpu in self._listed:
            if uuid in self._of_uuid:
                yield host, self._of_uuid[uuid], gpu
        for host, kinds in self._by_bus.items():
            if len(kinds) > 1 and len({*kinds.values()}) == 1:
                yield from ((host, bus, gpu) for gpu, bus in enumerate(kinds))

    def _host(self, line: str, number: int) -> str | None:
        label = _HOST.match(line)
        if label and is_host_name(label[1]) and not _INDEX.match(line):
            return label[1]
        return self._hosts.at(number)

    @cached_property
    def _hosts(self) -> HostContext:
        return HostContext(self._text.encode("utf-8", "replace"))


def _gpus(line: str) -> Iterator[tuple[str, int]]:
    """The PCI address and the number of each GPU in a line."""
    if table := _TABLE.match(line):
        yield bus_of(table[2]), int(table[1])
        return
    label = _HOST.match(line)
    if label and not _INDEX.match(line):
        line = line[label.end() :]
    for part in _SEGMENTS.split(line)[:MAX_INDEX]:
        buses, index = _BUS.findall(part), _INDEX.match(part)
        if len(buses) == 1 and index and int(index[1]) < MAX_INDEX:
            yield bus_of(buses[0]), int(index[1])
