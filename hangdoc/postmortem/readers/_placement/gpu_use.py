"""Whether the ranks of a host use all of its GPUs, so that a GPU has the number of its rank there.

A list of GPUs, as of nvidia-smi or rocm-smi, shows how many a host has; a command line, a log or a person says how many
the job uses. Where both are the same number, and nothing restricts or reorders the GPUs, each rank takes the GPU of
its number: that is what launchers do (`torch.cuda.set_device(local_rank)`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAX_LINE = 400  # characters
MAX_GPUS = 64  # of a host
_MODEL = (
    r"(?:nvidia[ -]?|amd[ -]?|geforce[ -]?|rtx[ -]?|instinct[ -]?)*"
    r"(?:[abhvltp]\d{2,3}[a-z]{0,3}|gh200|mi\d{2,3}[a-z]?|[2-5]0[5-9]0(?: ?ti)?|a6000|titan\w{0,4}|gpus?|gcds?)"
)
_USED = re.compile(
    rf"(?<![\w.:/-])(?P<gpus>\d{{1,2}}) ?(?:x|\*|\u00d7)? ?{_MODEL}(?![\w.])"
    r"|--?n(?:um)?[_-]?(?:proc(?:s|esses)?[_-]per[_-](?:node|machine)|gpus|processes)[= ](?P<asked>\d{1,2})(?!\d)"
    r"|\bgpus(?:-per-node)?[:=](?:\w{1,12}:)?(?P<slurm>\d{1,2})(?!\d)"
    r"|\bMEMBER: \d{1,3}/(?P<members>\d{1,3})\b|\bworld_size\W{1,3}(?P<world>\d{1,3})(?!\d)",
    re.IGNORECASE,
)
_ROW = re.compile(
    r"[\s|]{0,6}(?:GPU ?\[?)?(?P<gpu>\d{1,2})(?:\]|,|\s{0,4}\||:|\s{2,}|\s(?=N/A|NVIDIA|Tesla|\S+ MHz))", re.IGNORECASE
)
_RESTRICTED = re.compile(r"(?:CUDA|HIP|ROCR|GPU)_(?:VISIBLE_DEVICES|DEVICE_ORDINAL|DEVICE_ORDER)\b")
_IN_ORDER = re.compile(r"VISIBLE_DEVICES\W{1,4}0(?:, ?\d{1,2}){0,63}\b")


@dataclass(slots=True)
class GpuUse:
    """Takes the lines of a text in order."""

    _used: set[int] = field(default_factory=set)
    _listed: set[int] = field(default_factory=set)  # lengths of lists
    _next: int = 0  # index that the next row of a list has
    _restricted: bool = False

    def feed(self, text: str) -> None:
        if len(text) > MAX_LINE:
            return
        self._used.update(int(number) for found in _USED.finditer(text) for number in found.groups() if number)
        if "_DEVICE" in text and _RESTRICTED.search(text):
            ordered = _IN_ORDER.search(text)
            listed = [int(one) for one in re.findall(r"\d+", ordered[0])] if ordered else []
            self._restricted = self._restricted or not listed or listed != list(range(len(listed)))
        row = _ROW.match(text)
        if row and int(row["gpu"]) == self._next and self._next < MAX_GPUS:
            self._next += 1
        elif row and int(row["gpu"]) == 0:
            self._close()
            self._next = 1
        elif not text.strip() or (row and int(row["gpu"]) != self._next - 1):
            self._close()

    def _close(self) -> None:
        if self._next > 1:
            self._listed.add(self._next)
        self._next = 0

    @property
    def whole_host(self) -> bool:
        """True if the job uses all GPUs of each host of which a list is shown, each rank the GPU of its number."""
        self._close()
        return len(self._listed) == 1 and self._used == self._listed and not self._restricted
