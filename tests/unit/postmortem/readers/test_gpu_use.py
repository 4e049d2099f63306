"""GPUs that have the numbers of their ranks, because the job uses all of its only host."""

from __future__ import annotations

import pytest

from hangdoc.postmortem.readers._placement.placement import placement_of

FOUR = "index, clocks.sm\n0, 1980 MHz\n1, 1980 MHz\n2, 345 MHz\n3, 1980 MHz\n"
TWO = "GPU[0] : PCI Bus: 0000:05:00.0\nGPU[1] : PCI Bus: 0000:26:00.0\n"


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (f"one 4xH100 node\n{FOUR}", True),
        (f"a single box with 4 GPUs\n{FOUR}", True),
        (f"torchrun --standalone --nproc_per_node 4 train.py\n{FOUR}", True),
        (f"torchrun --nproc-per-node=2 train.py\n{TWO}", True),  # one node, unless told otherwise
        (f"  rank      : 1 (local_rank: 1)\n2x MI300X\n{TWO}", True),  # torchrun's table of failures
        (f"4xH100\n{FOUR}", False),  # perhaps on each of several nodes
        (f"two 4xH100 nodes\n{FOUR}", False),
        (f"one 8xH100 node, 4 GPUs of it are ours\n{FOUR}", False),
        (f"one node, CUDA_VISIBLE_DEVICES=3,2,1,0, 4 GPUs\n{FOUR}", False),
        (f"one node, CUDA_VISIBLE_DEVICES=0,1,2,3, 4 GPUs\n{FOUR}", True),
        (f"  rank      : 9 (local_rank: 1)\n2x MI300X\n{TWO}", False),
        ("one 4xH100 node\n", False),  # no list
    ],
)
def test_the_number_of_a_gpu(text: str, known: bool) -> None:
    assert placement_of(text).index_is_rank is known


@pytest.mark.parametrize(
    ("text", "one_node"),
    [
        ("$ torchrun --nproc_per_node 4 train.py", True),
        ("$ torchrun --nproc_per_node 4 --nnodes 1 train.py", True),
        ("$ torchrun --nproc_per_node 4 --nnodes 2 train.py", False),
        ("$ torchrun --nproc_per_node 4 --rdzv-endpoint h1:29400 train.py", False),
        ("$ torchrun --nproc_per_node 4 \\", False),  # it goes on
        ("$ torchrun --nproc_per_node 4 ... train.py", False),
        ("$ torchrun train.py", False),
    ],
)
def test_a_launcher_without_a_number_of_nodes(text: str, one_node: bool) -> None:
    assert placement_of(text).one_node is one_node
