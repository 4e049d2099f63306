"""Ranks made by torch.multiprocessing.spawn: no RANK in their environment. Run as `python spawned.py --ranks 2`."""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from lifetime import Lifetime, parser
from torch.nn.parallel import DistributedDataParallel as DDP


def worker(rank, world_size, meeting_point, seconds):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=world_size)
    lifetime = Lifetime(seconds)
    model = DDP(nn.LSTM(64, 256, num_layers=2, batch_first=True))
    optimizer = torch.optim.Adagrad(model.parameters())
    steps = 0
    while lifetime.goes_on():
        sequence = torch.randn(16, 40, 64).cumsum(1)
        out, _ = model(sequence[:, :-1])
        loss = (out[..., :64] - sequence[:, 1:]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        if rank == 0:
            print(f"{steps} steps, loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    options = parser()
    options.add_argument("--ranks", type=int, default=2)
    args = options.parse_args()
    with tempfile.NamedTemporaryFile() as file:
        name = file.name + ".rendezvous"
    mp.spawn(worker, (args.ranks, name, args.seconds), nprocs=args.ranks)
