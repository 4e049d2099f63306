"""Links and error counters of GPUs: PCIe, NVLink, ECC, and the metrics of the DCGM exporter.

* `nvidia-smi -q` (GPU Link Info), `--query-gpu=pcie.link.width.current,ecc.errors.uncorrected.volatile.total,...`
* `nvidia-smi nvlink -s`: `Link 0: 25 GB/s`, `Link 1: <inactive>`; `nvlink -e`: `Link 0: Replay Errors: 0`
* `nvidia-smi topo -m`: `GPU0  X  NV18  NV18 ...`, the GPUs that NVLink reaches from each
* matrices of p2pBandwidthLatencyTest (NVIDIA/cuda-samples) and nvbandwidth: the rate between GPUs, in GB/s
* `lspci -vv`: `LnkSta: Speed 16GT/s, Width x8 (downgraded)` below the GPU
* NVIDIA/dcgm-exporter, etc/default-counters.csv: `DCGM_FI_DEV_SM_CLOCK{gpu="0",...,Hostname="n1"} 1980`

An idle GPU lowers the generation of its PCIe link to save power, and never its width. Aggregate ECC counters are those
of its whole life: only the volatile ones, which begin with the driver, are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from statistics import median

from hangdoc.evidence.figures import Figure
from hangdoc.postmortem.readers._host_names import is_host_name, prompt_of
from hangdoc.postmortem.readers._logs.gpu_tables import (
    CLOCK,
    MAX_GPUS,
    POWER,
    SLOWED,
    TEMPERATURE,
    UTILISATION,
    slowed_reasons,
)
from hangdoc.postmortem.readers._nvidia_smi_rows import detail_gpu

WIDTH, WIDTH_MAX, LINKS_UP, LINKS_DOWN, LINK_ERRORS, UNCORRECTED, PEERS, RATE = (
    "gpu link width", "gpu link width max", "gpu nvlinks up", "gpu nvlinks down", "gpu link errors", "gpu ecc errors",
    "gpu nvlink peers", "gpu peer rate",
)  # fmt: skip
MAX_HOST = 60

_SECTION = re.compile(r"\s{2,40}(PCIe Generation|Link Width|GPU Link Info)\s*")
_DETAIL = re.compile(r"\s{2,40}(Max|Current|Device Current|Device Max|Host Max)\s{1,60}: (\d{1,2})x?\s*")
_NVLINK_GPU = re.compile(r"\s{0,8}GPU (\d{1,3}): \S.{0,80}\(UUID: .{0,60}\)\s*")
_NVLINK = re.compile(
    r"\s{0,12}Link (\d{1,2}): (<?inactive>?|\d{1,4}(?:\.\d{1,4})? GB/s|N/A|Disabled)\s*", re.IGNORECASE
)
_NVLINK_ERRORS = re.compile(
    r"\s{0,12}Link (\d{1,2})[:,] (Replay|Recovery|CRC|CRC FLIT|CRC Data|ECC Data)(?: Error)? ?(?:Errors|Count)?"
    r": (\d{1,18})\s*"
)
_TOPOLOGY = re.compile(r"\s{0,8}GPU(\d{1,3})(?=\s)((?:\s{1,12}(?:X|NV\d{1,2}|SYS|NODE|PHB|PXB|PIX))+)(?=\s|$)")
_MATRIX = re.compile(r"P2P=Enabled Bandwidth\b.{0,40}Matrix|GPU\(row\) (?:->|<-) GPU\(column\) bandwidth")
_MATRIX_HEAD = re.compile(r"\s{0,12}(?:D\\D)?(?:\s{1,16}\d{1,3}){2,256}\s*")
_MATRIX_ROW = re.compile(r"\s{0,12}(\d{1,3})((?:\s{1,16}(?:\d{1,6}\.\d{1,3}|N/A)){2,256})\s*")
_PCI_DEVICE = re.compile(
    r"((?:[0-9A-Fa-f]{4}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]) (?:3D controller|VGA compatible controller"
    r"|Processing accelerators|Display controller)\b"
)
_OTHER_DEVICE = re.compile(r"(?:[0-9A-Fa-f]{4}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f] \S")
_LINK_STATE = re.compile(r"\bLnkSta:\s{0,4}Speed [\d.]{1,6}GT/s(?: \(\w{1,20}\))?, Width x(\d{1,2})")
_LINK_CAPABILITY = re.compile(r"\bLnkCap:.{0,60}?, Width x(\d{1,2})")
_METRIC = re.compile(r"(DCGM_FI_\w{1,80})\{([^{}\n]{1,900})\}\s{1,4}(-?\d{1,18}(?:\.\d{1,9})?(?:e[+-]?\d{1,3})?)")
_LABEL = re.compile(r"(\w{1,40})=\"([^\"\n]{0,120})\"")
_METRICS = {
    "DCGM_FI_DEV_SM_CLOCK": CLOCK, "DCGM_FI_DEV_GPU_TEMP": TEMPERATURE, "DCGM_FI_DEV_GPU_UTIL": UTILISATION,
    "DCGM_FI_DEV_POWER_USAGE": POWER, "DCGM_FI_DEV_PCIE_LINK_WIDTH": WIDTH,
    "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": WIDTH_MAX,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": UNCORRECTED, "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": LINK_ERRORS,
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": LINK_ERRORS,
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": LINK_ERRORS,
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": LINK_ERRORS,
}  # fmt: skip
_REASONS = frozenset({"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"})
_QUERY = re.compile(r"--query-gpu[= ]([\w.,]{3,1000})")
_COLUMNS = {
    "pcie.link.width.current": WIDTH, "pcie.link.width.max": WIDTH_MAX,
    "ecc.errors.uncorrected.volatile.total": UNCORRECTED,
    "ecc.errors.uncorrected.volatile.device_memory": UNCORRECTED,
    "ecc.errors.uncorrected.volatile.dram": UNCORRECTED,
}  # fmt: skip


@dataclass(slots=True)
class GpuLinks:
    """Takes the lines of a text in order."""

    found: list[Figure] = field(default_factory=list)
    host: str = ""
    _gpu: str = ""  # that the next lines describe
    _section: str = ""  # of -q
    _columns: list[str] = field(default_factory=list)  # of --query-gpu
    _matrix: int = 0  # line of the last heading, head or row
    _links: dict[tuple[str, bool], int] = field(default_factory=dict)  # GPU, up -> links
    _errors: dict[str, int] = field(default_factory=dict)  # GPU -> errors

    def feed(self, text: str, host: str | None, number: int) -> None:
        if prompt := prompt_of(text):
            host = prompt.host or host
            self._gpu = self._section = ""
        if host and host != self.host and (prompt is not None or is_host_name(host)):
            self.host, self._gpu, self._section, self._columns = host[:MAX_HOST], "", "", []
        if len(self.found) < MAX_GPUS * 8 and len(text) <= 1200:
            self._line(text, number)

    def _line(self, text: str, number: int) -> None:
        if _MATRIX.search(text) or (number == self._matrix + 1 and _MATRIX_HEAD.fullmatch(text)):
            self._matrix = number
        elif number == self._matrix + 1 and (row := _MATRIX_ROW.fullmatch(text)):
            self._matrix = number
            cells = row[2].split()
            rates = [float(cell) for at, cell in enumerate(cells) if at != int(row[1]) and cell != "N/A"]
            if rates:
                self._add(RATE, row[1], f"{median(rates):g}", number)
        elif metric := _METRIC.search(text):
            self._metric(metric[1], dict(_LABEL.findall(metric[2])), metric[3], number)
        elif bus := detail_gpu(text):
            self._gpu, self._section = bus, ""
        elif found := _NVLINK_GPU.fullmatch(text) or _PCI_DEVICE.search(text):
            self._gpu, self._section = found[1], ""
        elif found := _SECTION.fullmatch(text):
            self._section = found[1]
        elif self._section == "Link Width" and self._gpu and (found := _DETAIL.fullmatch(text)):
            if found[1] in ("Max", "Current"):
                self._add(WIDTH if found[1] == "Current" else WIDTH_MAX, self._gpu, found[2], number)
        elif self._gpu and (found := _NVLINK.fullmatch(text)):
            self._nvlink(found[2].strip("<>").lower() != "inactive" and found[2][:1].isdigit(), number)
        elif self._gpu and (found := _NVLINK_ERRORS.fullmatch(text)):
            self._errors[self._called(self._gpu)] = self._errors.get(self._called(self._gpu), 0) + int(found[3])
            self._add(LINK_ERRORS, self._gpu, str(self._errors[self._called(self._gpu)]), number)
        elif (found := _TOPOLOGY.match(text)) and " X" in found[2].replace("\t", " "):
            self._add(PEERS, found[1], str(found[2].count("NV")), number)
        elif _OTHER_DEVICE.match(text):
            self._gpu = ""
        elif self._gpu and (found := _LINK_STATE.search(text)):
            self._add(WIDTH, self._gpu, found[1], number)
        elif self._gpu and (found := _LINK_CAPABILITY.search(text)):
            self._add(WIDTH_MAX, self._gpu, found[1], number)
        else:
            self._queried(text, number)

    def _nvlink(self, up: bool, number: int) -> None:
        key = self._called(self._gpu), up
        self._links[key] = self._links.get(key, 0) + 1
        self._add(LINKS_UP if up else LINKS_DOWN, self._gpu, str(self._links[key]), number)

    def _metric(self, name: str, labels: dict[str, str], value: str, number: int) -> None:
        gpu, host = labels.get("gpu", ""), labels.get("Hostname") or labels.get("hostname") or labels.get("node") or ""
        if not gpu.isdecimal() or not abs(float(value)) < 1e18:
            return
        owner = f"{host[:MAX_HOST]}/{gpu}" if host else self._called(gpu)
        if name in _REASONS:
            for reason in slowed_reasons(int(float(value))):
                self.found.append(Figure(SLOWED, SLOWED, "gpu", owner, reason, True, False, None, number))
        elif kind := _METRICS.get(name):
            if kind == LINK_ERRORS:
                self._errors[owner] = self._errors.get(owner, 0) + max(int(float(value)), 0)
                value = str(self._errors[owner])
            self.found.append(Figure(kind, kind, "gpu", owner, f"{float(value):g}", False, False, None, number))

    def _queried(self, text: str, number: int) -> None:
        """A line of --query-gpu: its command, the head of its columns, or a row."""
        if query := _QUERY.search(text):
            self._columns = query[1].split(",")
            return
        cells = [cell.strip() for cell in text.split(",")]
        if len(cells) < 2:
            self._columns = self._columns if text.strip() else []
            return
        names = [cell.split(" ")[0] for cell in cells]
        if "index" in names and any(name in _COLUMNS for name in names):
            self._columns = names
        elif len(cells) == len(self._columns) and "index" in self._columns:
            row = dict(zip(self._columns, cells, strict=True))
            for name, cell in row.items():
                if (kind := _COLUMNS.get(name)) and re.fullmatch(r"\d{1,9}", cell) and row["index"].isdecimal():
                    self._add(kind, row["index"], cell, number)

    def _called(self, gpu: str) -> str:
        return f"{self.host}/{gpu}" if self.host else gpu

    def _add(self, kind: str, gpu: str, value: str, number: int) -> None:
        self.found.append(Figure(kind, kind, "gpu", self._called(gpu)[:120], value, False, False, None, number))
