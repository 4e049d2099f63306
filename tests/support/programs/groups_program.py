"""One of several ranks with process groups: prints them, then creates and destroys groups on command.

Arguments: rank, world size, file to meet at, and how the rank is known: `argument` or `environ`.
"""

import json
import os
import sys

import torch.distributed as dist
from torch.distributed import distributed_c10d

rank, size, path, way = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]


def tell():
    groups = [
        [id(group), name, dist.get_process_group_ranks(group), group is dist.group.WORLD, dist.get_backend(group)]
        for group, name in distributed_c10d._pg_names.items()
    ]
    whole = dist.is_initialized()
    print(json.dumps([groups, dist.get_rank() if whole else -1, dist.get_world_size() if whole else -1]), flush=True)


if way == "environ":
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank % 2))
    os.environ.update(MASTER_ADDR="10.0.0.1", MASTER_PORT="29500")
tell()
store = dist.FileStore(path, size)
made, starts = [], 0
for line in sys.stdin:
    if line == "init\n":
        starts += 1
        fresh = dist.PrefixStore(str(starts), store)  # what the group before has left there is not for this one
        dist.init_process_group("gloo", store=fresh, rank=rank, world_size=size)
    elif line == "pairs\n":
        made += [dist.new_group([0, size - 1]), dist.new_group([size - 1, 1]), dist.new_group()]
    elif line == "drop\n":
        if rank in (0, size - 1):
            dist.destroy_process_group(made[0])
    elif line == "many\n":
        made += [dist.new_group([rank], use_local_synchronization=True) for _ in range(40)]
    elif line == "churn\n":  # until the pipe is closed, as a dict grows and shrinks
        ranks, names = distributed_c10d._pg_group_ranks, distributed_c10d._pg_names
        tell()
        while True:
            for group in made[3:]:
                ranks[group], names[group] = ranks.pop(group), names.pop(group)
    elif line == "end\n":
        dist.destroy_process_group()
    tell()
