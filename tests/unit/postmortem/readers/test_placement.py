"""Where ranks run, as texts state it: what counts as a statement, and what does not."""

from __future__ import annotations

import pytest

from hangdoc.evidence.pieces import ProcessRef
from hangdoc.postmortem.readers._host_names import prompt_of
from hangdoc.postmortem.readers._owner_hints import LOCAL_PIDS
from hangdoc.postmortem.readers._placement.placement import placement_of


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("rank 12 = cnode44, pid 30217:", {12: "cnode44"}),
        ("ranks 4-7 on cn31", dict.fromkeys(range(4, 8), "cn31")),
        ("gx14 holds ranks 8-15", dict.fromkeys(range(8, 16), "gx14")),
        ("node2 (ranks 16 to 23)", dict.fromkeys(range(16, 24), "node2")),
        (
            "Ranks 0..3 live on gpu-a01; 4..7 on gpu-a02",
            {**dict.fromkeys(range(4), "gpu-a01"), **dict.fromkeys(range(4, 8), "gpu-a02")},
        ),
        ("ranks 0-3: k01, 4-7: k02", {**dict.fromkeys(range(4), "k01"), **dict.fromkeys(range(4, 8), "k02")}),
        ("# on gpu07 (rank 12)", {12: "gpu07"}),
        ("rank 3 runs on hpc-n12.cluster.local", {3: "hpc-n12.cluster.local"}),
        ("[Rank 3] Hostname: wk-03 | Master: 10.1.0.1:29500", {3: "wk-03"}),
        ("#  Rank  1 Group  0 Pid 475220 on lab-w2 device  0 [0x01] NVIDIA GeForce RTX 4090", {1: "lab-w2"}),
        ("SLURM_PROCID 5 host n7", {5: "n7"}),
        ("rank 3/8 on n4, rank 5 of 8 on n6", {3: "n4", 5: "n6"}),
        ("rank 9 is on dgx-4, rank 10 is on dgx-5", {9: "dgx-4", 10: "dgx-5"}),
        ("global rank 5 -> worker-1 / local 1", {5: "worker-1"}),
        ("the machine with ranks 2 and 3 is h9", {2: "h9", 3: "h9"}),
        ("rank layout: gx1 = 0..1, gx2 = 2..3", {0: "gx1", 1: "gx1", 2: "gx2", 3: "gx2"}),
        ("RANK per pod: master-0=0, worker-1=2, worker-0=1", {0: "master-0", 1: "worker-0", 2: "worker-1"}),
        (
            "ranks: master 0,1 / job-worker-0 2,3",
            {**dict.fromkeys((0, 1), "master"), **dict.fromkeys((2, 3), "job-worker-0")},
        ),
        ("SLURM_NODEID of gx4 is 1, PROCID 2-3", {2: "gx4", 3: "gx4"}),
        ("pids on vm-a (10.0.3.2): 24468 = 0, 24469 = 1", {0: "vm-a", 1: "vm-a"}),
        ("pids on vm-a: 24468 = 0, 24469 = 0", {}),
        ("rank times: node1 12, node2 14", {}),  # not every rank once
        ("rank -> host\n0 -> ab01\n1 -> ab02\n2 -> ab03", {0: "ab01", 1: "ab02", 2: "ab03"}),
        ("RANK  HOST    PID    GPU\n0     cn04    30211  0\n1     cn04    30212  1", {0: "cn04", 1: "cn04"}),
        ("| rank | node | pid |\n|---|---|---|\n| 0 | cn04 | 30211 |\n| 1 | cn05 | 811 |", {0: "cn04", 1: "cn05"}),
        ("--nproc-per-node 2, NODE_RANK 0 = ga1, 1 = ga2", {0: "ga1", 1: "ga1", 2: "ga2", 3: "ga2"}),
        ("2 GPUs per node, node 0 = hgx11, node 1 = hgx12", {0: "hgx11", 1: "hgx11", 2: "hgx12", 3: "hgx12"}),
        ("torchrun --nproc_per_node=2 --node_rank 1 on c3", {2: "c3", 3: "c3"}),
        (
            "8 per node: first (ga11) has ranks 0-1 and the second one (ga14) 2-3",
            {0: "ga11", 1: "ga11", 2: "ga14", 3: "ga14"},
        ),
        ("2 ranks per node\nnode rank 0 - ga1\nnode rank 1 - ga2", {0: "ga1", 1: "ga1", 2: "ga2", 3: "ga2"}),
        ("$ srun -l hostname\n0: ga1\n1: ga1\n2: ga2", {0: "ga1", 1: "ga1", 2: "ga2"}),
        ('{"rank": 3, "host": "ga1", "pid": 4123}', {3: "ga1"}),
        (
            "global_rank_mapping=defaultdict(<class 'list'>, {'ga1': [0, 1], 'ga2': [2, 3]})",
            {0: "ga1", 1: "ga1", 2: "ga2", 3: "ga2"},
        ),
        ("mpirun --hostfile hf\nnid1 slots=2\nnid2 slots=1", {0: "nid1", 1: "nid1", 2: "nid2"}),
        ("4 VMs, rank a=0 b=1 c=2\ntrn-a$ uptime\ntrn-c$ uptime", {0: "trn-a", 1: "trn-b", 2: "trn-c"}),
        (
            "  Rank 13 -- GPU 5 managed by process 118304 on node 10.71.4.22",
            {13: "10.71.4.22"},
        ),
        ("me@box-a:~$ hostname   # RANK=0\nme@box-b:~$ hostname   # rank 1", {0: "box-a", 1: "box-b"}),
        ("me@box-a:~$ MASTER_ADDR=10.0.0.1 RANK=3 python t.py --bf16", {3: "box-a"}),
        ("me@box-a:~$ MASTER_ADDR=10.0.0.1 NODE_RANK=3 python t.py --bf16", {}),
        # no statements
        ("rank 3 is not on cn31", {}),
        ("rank a=0 b=1 c=2\ntrn-a$ uptime\nlab-b$ uptime", {}),  # of two series
        ("rank 3 was on cn31 yesterday", {}),
        ("rank 3 on cn31, no, rank 3 on cn32", {}),
        ("is rank 3 on cn31?", {}),
        ("rank 0: conv1\nrank 1: conv2", {}),
        ("rank 3 at step8100", {}),
        ("rank 3 on stream7", {}),
        ("rank 3 lost its connection to cn31", {}),
        ("[rank3]: connection closed by cn31", {}),
        ("rank 2: cn31 unreachable", {}),
        ("rank 2 waits for rank 5 on gloo0", {}),
        ("we moved rank 3 to cn44", {}),
        ("ranks 0-7 in all_reduce, cn31 idle", {}),
        ("rank 1 uses an H100, rank 2 an a100", {}),
        ("mpirun --map-by node --hostfile hf\nnid1 slots=2\nnid2 slots=2", {}),
        ("nid1 slots=2\nnid2 slots=2", {}),
    ],
)
def test_hosts(text: str, hosts: dict[int, str]) -> None:
    assert placement_of(text).hosts == hosts


def test_processes_that_deepspeed_started() -> None:
    """Its launcher gives the local rank of each; its mapping, the ranks of the host."""
    mapping = "n6: global_rank_mapping=defaultdict(<class 'list'>, {'n6': [0, 1], 'n7': [2, 3]})\n"
    spawned = "n7: [INFO] process 410{0} spawned with command: ['python', '-u', 'sft.py', '--local_rank={0}']\n"
    placement = placement_of(mapping + spawned.format(0) + spawned.format(1))
    assert placement.pids == {("n7", 4100): 2, ("n7", 4101): 3}


@pytest.mark.parametrize(
    ("text", "pids"),
    [
        ("rank 12 = cnode44, pid 30217:", {30217: 12}),
        ("pid 4711 is rank 3", {4711: 3}),
        ("pids 4412 (rank 0), 4413 (rank 1)", {4412: 0, 4413: 1}),
        ("PIDs: rank 0 is 40211, rank 1 is 40212", {40211: 0, 40212: 1}),
        ("ranks 0-3 have pids 911-914", {911: 0, 912: 1, 913: 2, 914: 3}),
        ("gives pids 41873..41875 for local ranks 0..2", {41873: 0, 41874: 1, 41875: 2}),
        ("  Rank 3 -- GPU 3 managed by process 4410 on node 10.0.0.7", {4410: 3}),
        ("Process 70112: python train.py     # RANK 0", {70112: 0}),
        ("Process 55103: python main.py          (SLURM_PROCID=1)", {55103: 1}),
        ("Process 602: python t.py    <- rank 1", {602: 1}),
        ("py-spy dump --pid 602   # this is rank 1", {602: 1}),
        ("71820 RANK=0\n71975 RANK=2", {71820: 0, 71975: 2}),
        ("4120 is LOCAL_RANK 0, 4133 LOCAL_RANK 1.", {4120: 0, 4133: 1}),
        ("4120 is rank 4 and 4133 is rank 5", {4120: 4, 4133: 5}),
        ("[rank3]:V1125 10:12:51.402000 20418 torch/_dynamo/guards.py:2813] [0/31]", {20418: 3}),
        ("08:00:12 cn-08 pid=104233 START world=6 rank=5", {104233: 5}),
        ("rank=5 host=cn-08 pid=104233", {104233: 5}),
        ("(Controller pid=44) - (ip=10.0.0.7, pid=2201) world_rank=5, local_rank=0, node_rank=5", {2201: 5}),
        ("(PolicyActor pid=811, ip=10.0.0.7) [rank5]:[W722 03:41:19.044 TCPStore.cpp:125] x", {811: 5}),
        ("(PolicyActor pid=811, ip=10.0.0.7) [INFO] [actor.py:7:setup] global rank 5 is ready", {811: 5}),
        ("/proc/5511/environ:RANK=0\n/proc/5512/environ:RANK=1", {5511: 0, 5512: 1}),
        ("NSpid:\t331876\t205\npid 205 is rank 3", {205: 3, 331876: 3}),
        ('pid 205 is rank 3\n(NSpid of 331876 was "331876 205")', {205: 3, 331876: 3}),
        ("my script prints rank/pid:\n0:90211 1:90212 2:90213", {90211: 0, 90212: 1, 90213: 2}),
        ("pids by rank: 90211=0 90212=1", {90211: 0, 90212: 1}),
        ("my script prints rank/pid:\n0:90211 2:90213", {}),  # not every rank
        ("rank and pid of each, at 10:12 and 11:40", {}),
        ("Process 41207: python t.py\n(41207 is local rank 0.)", {41207: 0}),
        ("py-spy dump --pid 602   # LOCAL_RANK=1", {602: 1}),
        (" 41207 Dl   nfs_wb_all  08:51:30 python t.py\n(41207 = rank 0.)", {41207: 0}),
        ("(41207 is local rank 0.)", {}),  # may be any number
        ("2026-07-19 15:40:02,118: rank0[2231][MainThread]: DEBUG: composer.utils: saved", {2231: 0}),
        ("\tpid: 4711\n\tname: kT3vWorkerDict_0:3", {4711: 3}),
        ("\tpid: 4711\n\tname: kT3vWorkerDict_1:3", {}),  # of a second group, behind the ranks of the first
        ("\tpid: 4711\n\tname: my_actor:3", {}),
        ("(TrainController pid=4471) [Rank 5 Error Snippet]:", {}),
        ("pid=104233 waits for rank=5", {}),
        ("71820 RANK=0", {}),  # may be any number
        ("Process 70112: python train.py --ranks 8", {}),
        ("rank 1 exited, pid 771 is the launcher", {}),
        ("rank 1 (pid 10), rank 2 (pid 10)", {}),
    ],
)
def test_pids(text: str, pids: dict[int, int]) -> None:
    assert {pid: rank for (_, pid), rank in placement_of(text).pids.items()} == pids


@pytest.mark.parametrize(
    ("text", "gpu", "rank"),
    [
        ("hb21 holds ranks 0-7, hb22 holds ranks 8-15; one rank per GPU, in order.", "6", 14),
        ("NODE_RANK 0 = hb21, 1 = hb22, --nproc_per_node 8, local rank i -> cuda:i", "6", 14),
        ("ranks 8-15 on hb22, device = LOCAL_RANK", "6", 14),
        ("rank 12 is on GPU 4 of hb22, that is 0000:9b:00.0", "00000000:9B:00.0", 12),
        ("hb21 holds ranks 0-7, hb22 holds ranks 8-15\n    torch.cuda.set_device(local_rank)", "6", 14),
        ("rank = 8 * node_rank + gpu, node rank 0 is hb21, node rank 1 is hb22", "6", 14),
        ("ranks -> gpus: 0 17:00.0, 1 9b:00.0", "00000000:9B:00.0", 1),
        ("hb21 holds ranks 0-1, hb22 holds ranks 2-3\nranks -> gpus: 0 17:00.0, 1 9b:00.0", "00000000:9B:00.0", None),
        ("hb21 holds ranks 0-7, hb22 holds ranks 8-15", "6", None),  # which GPU a rank uses is open
        ("hb21 holds ranks 0-7, hb22 holds ranks 8-15; nothing sets CUDA_VISIBLE_DEVICES", "6", 14),
        (
            "hb21 has rank 4, hb22 has ranks 6 and 7, one rank per GPU, in order",
            "1",
            None,
        ),  # and ranks of hb22 are missing
        ("hb22 holds ranks 8-11, one rank per GPU in order, 8 GPUs per node", "1", None),
        ("nodes in rank order: hb21 hb22 (8 GPUs each, rank = 8 * node + local, one rank per GPU in order)", "6", 14),
        ("rank = 8 * node + gpu", "6", None),  # of which node?
    ],
)
def test_gpus(text: str, gpu: str, rank: int | None) -> None:
    assert placement_of(text).rank_of_gpu("hb22", gpu) == rank


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("(process 0 -> cuda:0, process 1 -> cuda:1)", 1),
        ("process 0 uses GPU 1, process 1 uses GPU 0", 0),
        ("process 0 -> cuda:0", None),  # not a list
    ],
)
def test_each_process_has_its_gpu(text: str, rank: int | None) -> None:
    assert placement_of(text).rank_of_gpu(None, "1") == rank


@pytest.mark.parametrize(
    ("text", "gpu", "rank"),
    [
        ("CUDA_VISIBLE_DEVICES=4,6,5,7 torchrun --standalone --nproc_per_node=4 t.py", "6", 1),
        ("export CUDA_VISIBLE_DEVICES=4,6,5,7\ntorchrun --nproc_per_node=2 t.py", "5", None),  # it is not used
        ("CUDA_VISIBLE_DEVICES=4,5 python a.py\nCUDA_VISIBLE_DEVICES=6,7 python b.py", "6", None),  # two jobs
        ("CUDA_VISIBLE_DEVICES=4,6,5,7 torchrun --nnodes 2 --nproc_per_node=4 t.py", "6", None),  # of which node?
    ],
)
def test_visible_gpus_have_the_order_of_the_ranks(text: str, gpu: str, rank: int | None) -> None:
    assert placement_of(text).rank_of_gpu(None, gpu) == rank


GEFORCE = "VGA compatible controller: NVIDIA Corporation AD102 [GeForce RTX 4090] (rev a1)"


@pytest.mark.parametrize(
    ("launch", "kinds", "rank"),
    [
        ("torchrun --standalone --nproc_per_node=3 t.py", [GEFORCE] * 3, 1),
        ("torchrun --standalone --nproc_per_node=2 t.py", [GEFORCE] * 3, None),  # which two?
        ("torchrun --nnodes 2 --nproc_per_node=3 t.py", [GEFORCE] * 3, None),  # of which host?
        # CUDA begins with the fastest kind.
        ("torchrun --standalone --nproc_per_node=3 t.py", [GEFORCE, GEFORCE, GEFORCE.replace("4090", "4060")], None),
    ],
)
def test_lspci_lists_the_gpus_in_the_order_of_their_numbers(launch: str, kinds: list[str], rank: int | None) -> None:
    rows = [f"{bus}:00.0 {kind}" for bus, kind in zip(("17", "62", "d8"), kinds, strict=True)]
    assert placement_of("\n".join([launch, *rows])).rank_of_gpu(None, "0000:62:00.0") == rank


def test_launch_options_place_no_rank() -> None:
    text = "2 nodes, torchrun --nnodes 2 --nproc-per-node 4, tr-a is node_rank 0, tr-b is node_rank 1"
    assert placement_of(text).hosts == dict.fromkeys(range(4), "tr-a") | dict.fromkeys(range(4, 8), "tr-b")


@pytest.mark.parametrize(
    ("text", "alike"),
    [
        ("one rank per GPU, in order", True),
        ("hb21 holds ranks 0-7, one rank per GPU, in order", True),
        ("hb22 holds ranks 8-15, one rank per GPU, in order", False),  # of the table of any host
        ("rank 4 runs on n41, rank 6 on n42, one rank per GPU, in order", False),
    ],
)
def test_the_number_of_a_gpu_is_its_rank(text: str, alike: bool) -> None:
    found = placement_of(text)
    assert (found.index_is_rank, found.local_is_rank) == (alike, alike)


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("$ kubectl exec trainer-1 -- nvidia-smi", "trainer-1"),
        ("$ kubectl -n ml exec -it pod/trainer-1 -c main -- nvidia-smi", "trainer-1"),
        ("$ srun --overlap -w gx14 nvidia-smi", "gx14"),
        ("$ pdsh -w gx14 uptime", "gx14"),
        ("$ pdsh -w gx[11-14] uptime", None),
        ("$ srun -N2 nvidia-smi", None),
    ],
)
def test_where_a_command_ran(line: str, host: str | None) -> None:
    prompt = prompt_of(line)
    assert prompt is not None
    assert (prompt.host, prompt.states_host) == (host, True)


def test_a_number_on_a_host_is_the_rank_of_that_host() -> None:
    placement = placement_of("ranks 0-3 on tr-0, ranks 4-7 on tr-1")
    assert placement.rank_of(ProcessRef(host="tr-1.example", pid=LOCAL_PIDS - 2)) == 6
    assert placement.rank_of(ProcessRef(host="tr-2", pid=LOCAL_PIDS - 2)) is None
    assert placement.rank_of(ProcessRef(pid=LOCAL_PIDS - 2)) is None


def test_the_same_pid_on_another_host_is_another_process() -> None:
    placement = placement_of("rank 3 = cn04, pid 811\nrank 9 = cn05, pid 811")
    assert placement.rank_of(ProcessRef(host="cn05", pid=811)) == 9
    assert placement.rank_of(ProcessRef(host="cn06", pid=811)) is None
    assert placement.rank_of(ProcessRef(pid=811)) is None


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        (" rank   host     ms\n  0- 7  gpu-c11  401\n  8-15  gpu-c12  399", {"gpu-c11": (0, 7), "gpu-c12": (8, 15)}),
        ("mpirun -np 4 -H am1:2,am2:2 ./train", {"am1": (0, 1), "am2": (2, 3)}),
        ("mpiexec -ppn 2 -hosts cn19,cn20 -n 4 python enc.py", {"cn19": (0, 1), "cn20": (2, 3)}),
        ("#SBATCH --ntasks-per-node=4\nSLURM_JOB_NODELIST=gx[07-08]", {"gx07": (0, 3), "gx08": (4, 7)}),
        ("NODES='xb-2 xb-9'  # node_rank = position\n--nproc-per-node 2", {"xb-2": (0, 1), "xb-9": (2, 3)}),
        (
            "gx8: torchrun --nproc-per-node 2 --node-rank 1 t.py\ngx7: torchrun --nproc-per-node 2 --node-rank 0 t.py",
            {"gx7": (0, 1), "gx8": (2, 3)},
        ),
        ("Two-node DDP, 16 ranks.\nnode_rank 0 = b6, node_rank 1 = b7", {"b6": (0, 7), "b7": (8, 15)}),
        ("Two-node DDP, 16 GPUs.\nnode_rank 0 = b6, node_rank 1 = b7", {}),
        ("node 1 = gpu-c14, node 0 = gpu-c11\nnode 1 has ranks 8-15", {"gpu-c14": (8, 15)}),
        # A test of another size, an order of its own, or nodes that agree on their numbers themselves.
        ("mpirun -np 16 -H am1:2,am2:2 ./train", {}),
        ("mpirun --map-by node -np 4 -H am1:2,am2:2 ./train", {}),
        ("mpirun -np 4 -H am1:2,am2:2 ./all_reduce_perf -g 1", {}),
        ("#SBATCH --ntasks-per-node=4 --distribution=cyclic\nSLURM_JOB_NODELIST=gx[07-08]", {}),
        (
            "gx8: torchrun --nproc-per-node 2 --node-rank 1 --rdzv-backend c10d t.py\n"
            "gx7: torchrun --nproc-per-node 2 --node-rank 0 --rdzv-backend c10d t.py",
            {},
        ),
    ],
)
def test_a_host_has_ranks_where_all_of_them_are_stated(text: str, whole: dict[str, tuple[int, int]]) -> None:
    assert {host: (ranks[0], ranks[-1]) for host, ranks in placement_of(text).whole.items()} == whole


def test_a_list_of_all_local_ranks_beside_lines_of_as_many_ranks_is_one_host() -> None:
    heard = "[rank0]:[E812 16:02:40] timeout\n[rank1]:[E812 16:02:40] timeout\n[rank3]:[E812 16:02:40] timeout\n"
    listed = "".join(f"{4000 + n} LOCAL_RANK={n}\n" for n in range(4))
    whole = placement_of(heard + listed)
    assert whole.one_node
    assert {pid: rank for (_, pid), rank in whole.pids.items()} == {4000 + n: n for n in range(4)}
    assert not placement_of(heard.replace("rank3", "rank9") + listed).one_node
    assert not placement_of(listed).one_node


def test_the_hosts_of_a_communicator() -> None:
    line = "{}:21:{} [{}] NCCL INFO comm 0x9c1f350 rank {} nranks 4 cudaDev 1 nvmlDev 1 busId e1000 commId 0x6a - Init"
    text = "\n".join(("2 ranks per node", line.format("lab-a", 31, 1, 1), line.format("lab-b", 32, 0, 2)))
    assert placement_of(text).whole == {"lab-a": [0, 1], "lab-b": [2, 3]}


def test_the_pids_of_a_host() -> None:
    found = placement_of("pids on vm-a: 24468 = 0, 24469 = 1\nrank 4 runs on vm-b")
    assert found.rank_of(ProcessRef(host="vm-a", pid=24469)) == 1


def test_the_number_of_a_gpu_that_does_not_answer() -> None:
    text = (
        "2 nodes (g1 g2), --ntasks-per-node=8, local id = gpu index\n"
        "g2# nvidia-smi\nUnable to determine the device handle for GPU6: 0000:C1:00.0: Unknown Error"
    )
    assert placement_of(text).rank_of_gpu("g2", "0000:c1:00.0") == 14


def test_the_ranks_of_pods_that_an_operator_starts() -> None:
    pods = "PyTorchJob x\nx-master-0 Pending\nx-worker-0 Running"
    assert placement_of(f"{pods}\n2 pods with 4 ranks per node").whole == {
        "x-master-0": [0, 1, 2, 3],
        "x-worker-0": [4, 5, 6, 7],
    }
    assert placement_of(f"{pods}\n2 x 4 gpus").whole == {}  # it may start one process in each
