"""Whether the ranks of a host use all of its GPUs, so that a GPU has the number of its rank there.

A list of GPUs, as of nvidia-smi or rocm-smi, shows how many a host has; a command line, a log or a person says how many
the job uses. Where both are the same number, and nothing restricts or reorders the GPUs, each rank takes the GPU of
its number: that is what launchers do (`torch.cuda.set_device(local_rank)`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hangdoc.postmortem.readers._placement.buses import LSPCI

MAX_LINE = 400  # characters
MAX_GPUS = 64  # of a host
_GPU = (
    r"(?:nvidia[ -]?|amd[ -]?|geforce[ -]?|rtx[ -]?|instinct[ -]?){0,2}"
    r"(?:[abhvltp]\d{2,3}[a-z]{0,3}|gh200|mi\d{2,3}[a-z]?|[2-5]0[5-9]0(?: ?ti)?|a6000|titan\w{0,4}|gpus?|gcds?)"
)
_USED = re.compile(
    rf"(?<![\w.:/-])(?P<gpus>\d{{1,2}}) ?(?:x|\*|\u00d7)? ?{_GPU}(?![\w.])"
    r"|--?n(?:um)?[_-]?(?:proc(?:s|esses)?[_-]per[_-](?:node|machine)|gpus|processes)[= ](?P<asked>\d{1,2})(?!\d)"
    r"|\bgpus(?:-per-node)?[:=](?:\w{1,12}:)?(?P<slurm>\d{1,2})(?!\d)"
    r"|\bMEMBER: \d{1,3}/(?P<members>\d{1,3})\b|\bworld_size\W{1,3}(?P<world>\d{1,3})(?!\d)",
    re.IGNORECASE,
)
_ROW = re.compile(
    r"[\s|]{0,6}(?:GPU ?\[?)?(?P<gpu>\d{1,2})(?:\]|,|\s{0,4}\||:|\s{2,}|\s(?=N/A|NVIDIA|Tesla|\S+ MHz))", re.IGNORECASE
)
_RESTRICTED = re.compile(
    r"(?:CUDA|HIP|ROCR|GPU)_(?:VISIBLE_DEVICES|DEVICE_ORDINAL|DEVICE_ORDER)\b"
    r"(?:\W{1,4}(?P<gpus>\d{1,2}(?:, ?\d{1,2}){0,63})(?!\d))?"
)


@dataclass(slots=True)
class GpuUse:
    """Takes the lines of a text in order."""

    _used: set[int] = field(default_factory=set)  # numbers of GPUs that the job uses
    _listed: set[int] = field(default_factory=set)  # lengths of the lists that have ended
    _indices: set[int] = field(default_factory=set)  # of all rows
    _next: int = 0  # index that the next row of a list has
    _listed_by_bus: int = 0  # GPUs that lspci lists
    _restricted: bool = False

    def feed(self, text: str) -> None:
        if len(text) > MAX_LINE:
            return
        self._used.update(int(number) for found in _USED.finditer(text) for number in found.groups() if number)
        for found in _RESTRICTED.finditer(text) if "_DEVICE" in text else ():
            gpus = [int(gpu) for gpu in found["gpus"].split(",")] if found["gpus"] else []
            self._restricted = self._restricted or not gpus or gpus != list(range(len(gpus)))
        if LSPCI.match(text):
            self._listed_by_bus += 1
            return
        row = _ROW.match(text)
        index = int(row["gpu"]) if row else None
        self._indices |= {index} if index is not None else set()
        if index == self._next < MAX_GPUS:
            self._next += 1
        elif not text.strip() or (index is not None and index != self._next - 1):
            self._listed |= {self._next} if self._next > 1 else set()
            self._next = int(index == 0)

    @property
    def whole_host(self) -> bool:
        """True if the job uses all GPUs of each host of which a list is shown, each rank the GPU of its number."""
        return len(self._lengths) == 1 and self._used == self._lengths and not self._restricted

    @property
    def most_of_host(self) -> bool:
        """True if rows show most of as many GPUs as the job uses, in any order, and no other."""
        used = max(self._used, default=0)
        fits = len(self._used) == 1 and bool(self._indices) and max(self._indices) < used
        return fits and 2 * len(self._indices) > used and not self._restricted

    @property
    def _lengths(self) -> set[int]:
        """Of all lists, also of the one that goes on."""
        return self._listed | {count for count in (self._next, self._listed_by_bus) if count > 1}
