"""Ranks that a tool itself calls slow, and the throughput of ranks that it lists.

* `MnEtpt/Rnk: 101.12TF/21 | MxEtpt/Rnk: 312.95TF/10`, `^^^^ Bottom 4 Ranks with lowest Etpt(TF): 101.12/21 306.72/3`
  (megatron/core/utils.py, StragglerDetector.report): the estimated throughput of each of these ranks
* `GEMM throughput (...) [TFLOP/s/GPU]: median=..., mean=...` and `OUTLIER rank 3 (node1): 451.87 (-34.4%)`
  (megatron/training/gpu_sniff_test.py): ranks apart from the median of a benchmark
* `STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. Affected ranks: {...}`, with numbers or
  `StragglerId(rank=3, node='node1')` (nvidia-resiliency-ext: ptl_resiliency/straggler_det_callback.py)
* `Fault nodes are: [] and stragglers are: [1]` (dlrover: elastic_agent/torch/training.py): numbers of nodes
* `Detected 688.15 GFLOPs for GPU 2 which is below the threshold 1502.30` (DCGM: dcgmlib/dcgm_errors.h, of dcgmi diag)
* `rank 3 is 28.1% slower than the median` (scripts of users)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hangdoc.evidence.figures import Figure
from hangdoc.postmortem.readers._host_names import NAME

MAX_FIGURES = 4_096
MAX_JUDGED = 64  # owners that one line calls slow
THROUGHPUT = "estimated throughput"

_MEASURED = re.compile(r"\bM[nx]Etpt/Rnk: (\d{1,6}(?:\.\d{1,6})?)TF/(\d{1,6})\b")
JUDGED = "judged"  # kind: a tool calls the owner slow; the value is its share of the median, "" unless it is stated
_BENCHMARK = re.compile(r"(?P<name>[A-Za-z][^\[\]]{2,120}?) \[[^\[\]]{1,24}\]: median=[\d.]{1,20}, mean=")
_OWN_BENCHMARK = re.compile(r"\b(?:gemm|matmul|flop)", re.IGNORECASE)  # of one GPU: a collective is slow on all ranks
_OUTLIER = re.compile(
    rf"\bOUTLIER rank (?P<rank>\d{{1,6}})(?: \((?P<host>{NAME})\))?: [\d.]{{1,20}}"
    r" \((?P<apart>[+-]\d{1,3}(?:\.\d{1,3})?)%\)"
)
_CLEARED = re.compile(r"\bGPU sniff test\b|\bResult: ALL RANKS OK\b")
_AFFECTED = re.compile(
    r"Some GPUs (?P<what>have worse relative performance|performance dropped)\. Affected ranks:"
    r" (?P<ranks>[\[{][^\n]{1,4000})"
)
_STRAGGLER_ID = re.compile(rf"\brank=(?P<rank>\d{{1,6}})(?=[,)])(?:, node='(?P<host>{NAME})')?")
_STRAGGLER_NODES = re.compile(r"\bFault nodes are: .{0,400}? and stragglers are: \[(?P<nodes>[\d, ]{1,400})\]")
_SLOWER = re.compile(
    rf"\brank (?P<rank>\d{{1,6}})(?: \(?(?:on )?(?P<host>{NAME})\)?)? (?:is|was|runs)"
    r" (?P<apart>\d{1,3}(?:\.\d{1,3})?) ?% slower than (?:the )?(?:median|mean|average|other|rest|peers)",
    re.IGNORECASE,
)
_BELOW = re.compile(
    r"\bDetected (?P<value>\d{1,9}(?:\.\d{1,4})?) (?P<unit>[A-Za-z/]{1,12}) for GPU (?P<gpu>\d{1,3}) which is below the"
    r" threshold (?P<least>\d{1,9}(?:\.\d{1,4})?)"
)
_LISTED = re.compile(
    r"Ranks with (?:lowest|highest) {1,2}Etpt ?\(TF\): ((?:\d{1,6}(?:\.\d{1,6})?/\d{1,6},? {0,3}){1,256})"
)


@dataclass(slots=True)
class RankReports:
    """Takes the lines of a text in order."""

    found: list[Figure] = field(default_factory=list)
    _benchmark: str = ""

    def feed(self, text: str, number: int) -> None:
        if len(self.found) >= MAX_FIGURES:
            return
        pairs = _MEASURED.findall(text)
        for listed in _LISTED.finditer(text):
            pairs += [tuple(one.strip(", ").split("/")) for one in listed[1].split()]
        for value, rank in pairs:
            self.found.append(Figure("rate", THROUGHPUT, "rank", str(int(rank)), value, False, False, None, number))
        self._judged(text, number)

    def _judged(self, text: str, number: int) -> None:
        """Ranks and nodes that a tool calls slow. A later run of a benchmark replaces the one before."""
        if _CLEARED.search(text):
            self.found = [one for one in self.found if one.kind != JUDGED]
        if benchmark := _BENCHMARK.search(text):
            name = benchmark["name"].rpartition(": ")[2].strip()  # without the name of a logger
            self._benchmark = name if _OWN_BENCHMARK.search(name) else ""
        elif outlier := _OUTLIER.search(text):
            if self._benchmark and float(outlier["apart"]) < 0:
                share = 1 + max(float(outlier["apart"]), -99.0) / 100
                self._add(self._benchmark, outlier["rank"], outlier["host"], f"{share:.4g}", number)
        elif affected := _AFFECTED.search(text):
            relative = affected["what"].startswith("have")
            name = "relative performance" if relative else "performance, compared with before,"
            named = [(one["rank"], one["host"]) for one in _STRAGGLER_ID.finditer(affected["ranks"])]
            named = named or [(one, None) for one in re.findall(r"\b\d{1,6}(?=[,\]}])", affected["ranks"][:400])]
            for rank, host in named[:MAX_JUDGED]:
                self._add(name, rank, host, "" if relative else "1", number)
        elif below := _BELOW.search(text):
            name = f"{below['value']} {below['unit']}, below the threshold of {below['least']}"
            self.found.append(Figure(JUDGED, name, "gpu", str(int(below["gpu"])), "", line=number))
        elif nodes := _STRAGGLER_NODES.search(text):
            for node in nodes["nodes"].split(",")[:MAX_JUDGED]:
                if node.strip():
                    self.found.append(Figure(JUDGED, "node check", "node", node.strip(), "1", line=number))
        elif slower := _SLOWER.search(text):
            # A sentence may go on with the reason, which is not always the rank itself.
            self._add(f"speed, {slower['apart']}% lower", slower["rank"], slower["host"], "1", number)

    def _add(self, name: str, rank: str, host: str | None, value: str, number: int) -> None:
        name = f"{name} on {host}" if host else name
        self.found.append(Figure(JUDGED, name[:160], "rank", str(int(rank)), value, line=number))
