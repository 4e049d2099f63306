"""The pods of a PyTorchJob and the nodes that they are."""

from __future__ import annotations

import pytest

from hangdoc.postmortem.readers._placement.placement import placement_of

PODS = "mt-master-0 0/1 Error\nmt-worker-0 0/1 Error\nmt-worker-1 0/1 OOMKilled\n"


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        (f"PyTorchJob, 4 GPUs each\n{PODS}", (8, 9, 10, 11)),
        (f"pytorchjob.kubeflow.org/mt\n{PODS}    nvidia.com/gpu:  2\n", (4, 5)),
        (f"PyTorchJob, 1 GPU each\n{PODS}", (2,)),
        (f"4 GPUs each\n{PODS}", ()),  # perhaps of another operator
        (f"PyTorchJob\n{PODS}", ()),  # nobody says how many ranks a pod has
        (f"PyTorchJob with --rdzv-backend=c10d, 4 GPUs each\n{PODS}", ()),
        (f"PyTorchJob, 4 GPUs each\n{PODS}other-master-0 1/1 Running\n", ()),  # of two jobs
    ],
)
def test_ranks_of_a_pod(text: str, ranks: tuple[int, ...]) -> None:
    assert tuple(placement_of(text).ranks_of("mt-worker-1")) == ranks
