"""Two ranks with sends and receives that nobody answers, and pipeline schedules. Rank 0 prints what it has started.

Arguments: a folder to meet in; rank 0 starts rank 1, which ends with it.
"""

import json
import os
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B


def schedules(pair):
    device = torch.device("cpu")
    stages = [PipelineStage(nn.Linear(2, 2), number, 4, device, group=pair) for number in (0, 2)]
    single = Schedule1F1B(PipelineStage(nn.Linear(2, 2), 1, 3, device), n_microbatches=6)
    return single, ScheduleInterleaved1F1B(stages, n_microbatches=4)


class Exchange:
    def run(self):
        x = torch.ones(1000)
        pair = dist.new_group([0, 1])
        single, interleaved = schedules(pair)
        done = dist.isend(x, 1, tag=1)
        done.wait()
        req = dist.irecv(torch.empty(1000), 1, tag=5)
        reqs = [done, dist.isend(x, 1, tag=3)]
        handles = {"out": dist.isend(x, 1, group=pair, tag=9)}
        self.any = dist.irecv(torch.empty(1000), tag=7)
        dist.all_reduce(torch.ones(1))
        many = [dist.isend(x, 1, tag=11) for _ in range(40)]
        print(json.dumps([id(dist.group.WORLD), id(pair)]), flush=True)
        req.wait()
        return reqs, handles, many, single, interleaved


def main():
    rank = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    peer = subprocess.Popen([sys.executable, __file__, sys.argv[1], "1"], stdin=subprocess.PIPE) if rank == 0 else None
    store = dist.FileStore(os.path.join(sys.argv[1], "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    if peer:
        Exchange().run()
    dist.new_group([0, 1])
    dist.recv(torch.empty(1000), 0, tag=1)
    dist.all_reduce(torch.ones(1))
    sys.stdin.read()  # until rank 0 has ended


main()
