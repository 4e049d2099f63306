from __future__ import annotations

import pytest

from hangdoc.postmortem.readers._placement.placement import placement_of


@pytest.mark.parametrize(
    "text",
    [
        "on node nK:\nfor l in 0 1; do RANK=$((2*K+l)) python t.py & done\nn0 n1 n2",
        "node k (n<k>) has ranks 2k..2k+1. n0 and n2 work, n1 does not",
        'i=0; for h in n0 n1 n2; do\nssh $h "torchrun --nproc-per-node 2 --node_rank=$i t.py" & i=$((i+1))\ndone',
        "HOSTS=(n0 n1 n2)\nfor i in 0 1 2; do ssh ${HOSTS[$i]} torchrun --nproc-per-node 2 --node_rank $i t.py; done",
        "node ranks in this order: n0, n1, n2. 2 gpus per node",
        "3 nodes x 2 GPU, ranks in node order n0 n1 n2. small sizes pass",
        "ranks are placed in order of the nodelist, 2 per node:\n$ scontrol show hostnames n[0-2]\nn0\nn1\nn2\n\nn2: x",
        "3 nodes x 2.\nOrder of nodes in the job (SLURM_NODELIST): n0, n1, n2, ranks filled by node",
    ],
)
def test_the_ranks_of_numbered_hosts(text: str) -> None:
    assert placement_of(text).hosts == {0: "n0", 1: "n0", 2: "n1", 3: "n1", 4: "n2", 5: "n2"}


def test_the_number_of_a_host_by_the_end_of_its_name() -> None:
    text = "torchrun --nproc_per_node=2 --node_rank=$(hostname | grep -o '[0-9]*$')\nn-0 n-1 n-2"
    assert placement_of(text).hosts == {0: "n-0", 1: "n-0", 2: "n-1", 3: "n-1", 4: "n-2", 5: "n-2"}


def test_the_heading_of_a_node_and_what_nccl_prints_there() -> None:
    nodes = ("machine A (node_rank 0)", "{}:21:21 [0] NCCL INFO x", "machine B (node_rank 1)", "{}:9:9 [0] NCCL INFO y")
    text = "\n".join(("2 machines 1 gpu each", *nodes))
    assert placement_of(text.format("ada", "turing")).hosts == {0: "ada", 1: "turing"}
    assert placement_of(text.format("ada", "ada")).hosts == {}


@pytest.mark.parametrize(("heard", "named"), [("rdma-c", "rdma-c"), ("c", "c")])
def test_a_host_called_by_the_end_of_its_name(heard: str, named: str) -> None:
    lines = "\n".join(f"{heard}{at}: x" for at in (1, 2, 1, 2))
    found = placement_of(f"2 nodes x 2, ranks in node order c1 c2\n{lines}")
    assert found.hosts == {rank: f"{named}{1 + rank // 2}" for rank in range(4)}


@pytest.mark.parametrize(
    "text",
    [
        "for h in n0 n1 n2; do ssh $h uptime; done\n2 gpus per node",
        "$ scontrol show hostnames n[0-2]\nn0\nn1\nn2\n2 gpus per node",
        "node ranks in this order: n0, n1, n2. node ranks in this order: n1, n0, n2",
        "HOSTS=(n0 n1 n2)\nHOSTS=(n2 n1 n0)\ntorchrun --nproc-per-node 2",
    ],
)
def test_a_list_of_hosts_is_no_order_of_ranks(text: str) -> None:
    assert placement_of(text.replace(". node", ".\nnode")).hosts == {}
