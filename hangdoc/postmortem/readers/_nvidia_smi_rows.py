"""Rows of nvidia-smi's table and lines of `nvidia-smi -q`, whole or cut out of their output.

Drivers 418 to 580. A GPU that the driver has lost shows `ERR!` in the table, or a message in its place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

BUS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]"
BROKEN = "ERR!"

_GPU = re.compile(
    rf"\|\s{{1,6}}(\d{{1,3}})\s+(\S.*?)\s+(?:On|Off|N/A|ERR!|WDDM|TCC|MCDM)\s*\|\s*({BUS})\s+\S*\s*\|\s*(\S+)?\s*\|\s*"
)
_STATE = re.compile(
    r"\|\s*(?:\d{1,3}%|N/A|ERR!)\s+(\d{1,3}C|N/A|ERR!)\s+(P\d{1,2}|N/A|ERR!)\s+(\S+?)W?\s*/\s*(\S+?)W?\s*\|"
    r"\s*(\d{1,9}|N/A|ERR!)(?:MiB)?\s*/\s*(\d{1,9}|N/A|ERR!)(?:MiB)?\s*\|\s*(\d{1,3}%|N/A|ERR!)\s+.*"
)
# What is left of a row in a text that a person cut or copied.
_CUT_GPU = re.compile(r"\W{0,6}(\d{1,3})\s+(?:NVIDIA|Tesla|GeForce|Quadro|A\d|H\d|B\d|L\d|RTX|AMD)\b")
_CUT_POWER = re.compile(r"(\d{1,4}(?:\.\d{1,3})?) ?W\s{0,4}/\s{0,4}(\d{1,4}(?:\.\d{1,3})?) ?W\b")
_CUT_UTILISATION = re.compile(r"\|\s{0,12}(\d{1,3}) ?%\s{1,12}(?:Default|E\. Proc|Excl|Proh)")
_CUT_TEMPERATURE = re.compile(r"(?<![\w.])(\d{1,3})(?:\.\d)? ?(?:\u00b0|')?[Cc]\b")
_PICKED = re.compile(r"nvidia-smi\b.{0,200}\s(?:-i|--id)[ =]?(\d{1,3})\b(?!,)")
_DETAIL_GPU = re.compile(rf"\s{{0,4}}GPU ({BUS})\s*")
_DETAIL = re.compile(r"(\s*)(\S[^:]{0,60}?)\s*:\s(.{0,200}?)\s*")


@dataclass(frozen=True, slots=True)
class GpuRow:
    """The first row of a GPU."""

    index: str
    name: str | None = None
    bus: str | None = None  # None: the row is cut
    uncorrected: str | None = None  # uncorrectable ECC errors


@dataclass(frozen=True, slots=True)
class StateRow:
    """The second row of a GPU, as printed: `N/A` and `ERR!` are left out. Units: degrees Celsius, W, MiB, percent."""

    temperature: str | None = None
    state: str | None = None
    power: str | None = None
    limit: str | None = None
    used: str | None = None
    total: str | None = None
    utilisation: str | None = None


@dataclass(frozen=True, slots=True)
class Detail:
    """`Name : value` of -q."""

    depth: int  # characters of indentation
    name: str
    value: str


def gpu_row(text: str) -> GpuRow | None:
    if found := _GPU.fullmatch(text):
        return GpuRow(found[1], found[2].split("  ")[0], found[3], found[4])
    found = _CUT_GPU.match(text)
    return GpuRow(found[1]) if found else None


def state_row(text: str) -> StateRow | None:
    if found := _STATE.fullmatch(text):
        shown = [None if cell in ("N/A", BROKEN) else cell for cell in found.groups()]
        temperature, state, power, limit, used, total, utilisation = shown
        return StateRow(
            temperature.removesuffix("C") if temperature else None, state, power, limit, used, total,
            utilisation.removesuffix("%") if utilisation else None,
        )  # fmt: skip
    power = _CUT_POWER.search(text)
    if not power:
        return None
    warm, used = _CUT_TEMPERATURE.search(text), _CUT_UTILISATION.search(text)
    return StateRow(warm[1] if warm else None, None, power[1], power[2], utilisation=used[1] if used else None)


def picked_gpu(text: str) -> int | None:
    """The only GPU of which a command asks: `nvidia-smi -q -i 5`."""
    found = _PICKED.search(text)
    return int(found[1]) if found else None


def detail_gpu(text: str) -> str | None:
    """The bus address in the line of -q with which a GPU begins."""
    found = _DETAIL_GPU.fullmatch(text)
    return found[1] if found else None


def detail(text: str) -> Detail | None:
    found = _DETAIL.fullmatch(text)
    return Detail(len(found[1]), found[2], found[3]) if found else None


def is_slowdown(reason: str) -> bool:
    """True if a reason for lower clocks is heat or a fault of the power supply, not idleness or a power cap.

    nvml.h, nvmlClocksEventReasons: HW Slowdown, HW Thermal Slowdown, SW Thermal Slowdown, HW Power Brake Slowdown.
    """
    return "slowdown" in reason.lower()
