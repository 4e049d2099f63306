"""The order of the pods of a PyTorchJob: node 0 is the master, node N+1 is worker N.

Kubeflow's training operator (pkg/controller.v1/pytorch/envvar.go) sets RANK, or PET_NODE_RANK of torchrun, so. With an
elastic policy, the rendezvous numbers the nodes. A text has to say that the pods are of such a job: other operators
use the same names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_LINE = 600  # characters
MAX_PODS = 4096
_JOB = re.compile(r"\bpytorch-?jobs?\b|\bPET_NODE_RANK\b", re.IGNORECASE)
_OPERATOR = "training.kubeflow.org/"  # in its labels; of its jobs, only those of PyTorch and XGBoost have a master
_ELASTIC = re.compile(r"\brdzv|PET_RDZV|elastic_?policy|max_?restarts", re.IGNORECASE)
_POD = re.compile(
    r"(?<![\w.-])(?P<job>[a-z0-9](?:[a-z0-9-]{0,80}[a-z0-9])?)-(?P<role>master|worker)-(?P<number>\d{1,4})(?![\w-])"
)
_SIZE = re.compile(
    r"\bWORLD_SIZE[\"']?[:=] {0,20}[\"']?(\d{1,5})\b|\bwaiting for clients\. \d{1,5}/(\d{1,5}) clients joined"
)
_GPUS = re.compile(r"\b(?:nvidia|amd)\.com/gpu\"?: {1,8}\"?(\d{1,3})\b")  # the limit of a container


def node_of(pod: str) -> tuple[str, int] | None:
    """The job and the node of a pod, by its name; None: it is no pod of a PyTorchJob."""
    found = _POD.fullmatch(pod)
    if found is None or (found["role"] == "master" and found["number"] != "0"):
        return None  # a job has one master
    return found["job"], int(found["number"]) + (found["role"] == "worker")


@dataclass(slots=True)
class PodOrder:
    """Takes the lines of a text in order."""

    _named: bool = False
    _operated: bool = False  # the text shows the operator, and not the kind of the job
    _elastic: bool = False
    _pods: dict[str, tuple[str, int]] = field(default_factory=dict)  # pod -> job, node
    _gpus: set[int] = field(default_factory=set)
    _sizes: set[int] = field(default_factory=set)  # of the job, in ranks

    def feed(self, text: str) -> None:
        if len(text) > MAX_LINE:
            return
        self._named = self._named or _JOB.search(text) is not None
        self._operated = self._operated or _OPERATOR in text
        self._elastic = self._elastic or _ELASTIC.search(text) is not None
        if "com/gpu" in text and (gpus := _GPUS.search(text)):
            self._gpus.add(int(gpus[1]))
        if size := _SIZE.search(text):
            self._sizes.add(int(size[1] or size[2]))
        if "-worker-" not in text and "-master-" not in text:
            return
        for pod in _POD.finditer(text):
            if len(self._pods) < MAX_PODS and (node := node_of(pod[0])):
                self._pods[pod[0]] = node

    @property
    def ranks_of_each(self) -> int | None:
        """Ranks of each pod: one a GPU, or one, if no pod has several and there are as many pods as ranks."""
        if self._sizes == {len(self.numbers())} and self._gpus <= {1}:
            return 1  # of pods with several GPUs, the operator may count the pods
        return next(iter(self._gpus)) if len(self._gpus) == 1 and 0 not in self._gpus else None

    def numbers(self) -> Mapping[int, str]:
        """Node -> pod. Empty: the text does not say that it is such a job, or has pods of several jobs."""
        of_one = len({job for job, _ in self._pods.values()}) == 1
        found = {node: pod for pod, (_, node) in self._pods.items()}
        whole = len(found) == len(self._pods) > 1 and 0 in found
        alone = self._sizes == {len(found)} and self._gpus <= {1}  # one rank in each pod
        named = self._named or (self._operated and alone)
        return found if named and of_one and whole and not self._elastic else {}
