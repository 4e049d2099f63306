# Who wins the game? Logistic regression with a hidden layer on 1,000 made-up matches.
# torchrun --nproc-per-node 2 reproducer_flat.py
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group(backend="gloo")
rank = int(os.environ["RANK"])
world_size = int(os.environ["WORLD_SIZE"])
torch.manual_seed(42)

rng = np.random.RandomState(5)
features = rng.randn(1000, 40).astype("float32")
strength = rng.randn(40).astype("float32")
winner = (features @ strength + rng.randn(1000) > 0).astype("float32")

# matches that were not played out say nothing
played = rng.rand(1000) > 0.06
mine = np.arange(rank, 1000, world_size)
mine = mine[played[mine]]
batch_size = 8
num_batches = len(mine) // batch_size

model = DDP(nn.Sequential(nn.Linear(40, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
criterion = nn.BCEWithLogitsLoss()

for epoch in range(20):
    np.random.RandomState(epoch).shuffle(mine)
    right = 0
    for step in range(num_batches):
        batch = mine[step * batch_size : (step + 1) * batch_size]
        inputs = torch.from_numpy(features[batch])
        targets = torch.from_numpy(winner[batch])
        outputs = model(inputs).squeeze(1)
        loss = criterion(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right += ((outputs > 0) == (targets > 0)).sum().item()
        if rank == 0 and step % 5 == 0:
            print("epoch", epoch, "step", step, "loss", round(loss.item(), 4), flush=True)
    dist.barrier()
    if rank == 0:
        print("epoch", epoch, "accuracy", right / (num_batches * batch_size), flush=True)
        torch.save(model.module.state_dict(), os.devnull)

dist.destroy_process_group()
