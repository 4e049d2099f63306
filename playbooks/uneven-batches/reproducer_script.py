# Which of four instruments plays? A weekend's script.
#   torchrun --nproc-per-node 3 reproducer_script.py

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

torch.manual_seed(3)
dist.init_process_group("gloo")
rank = dist.get_rank()
world = dist.get_world_size()

# notes: a fundamental and its overtones, another mix for each instrument
n_notes = 1442
mix = torch.rand(4, 10)
which = torch.randint(4, (n_notes,))
pitch = 2 + 10 * torch.rand(n_notes, 1, 1)
t = torch.linspace(0, 1, 300)
overtones = torch.arange(1, 11).view(1, 10, 1)
notes = (mix[which].unsqueeze(2) * torch.sin(6.283 * pitch * overtones * t)).sum(1)
notes += 0.5 * torch.randn_like(notes)

my_notes, my_labels = notes[rank::world], which[rank::world]
batch_size = 8

net = DDP(nn.Sequential(nn.Linear(300, 600), nn.ReLU(), nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 4)))
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
loss_fn = nn.CrossEntropyLoss()

for epoch in range(30):
    right = 0
    for step, start in enumerate(range(0, len(my_notes), batch_size)):
        x = my_notes[start : start + batch_size]
        y = my_labels[start : start + batch_size]
        out = net(x)
        loss = loss_fn(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        right += (out.argmax(1) == y).sum().item()
        if rank == 0 and step % 10 == 0:
            print("epoch", epoch, "step", step, "loss", round(loss.item(), 4), flush=True)
    counts = [torch.zeros(2) for _ in range(world)]
    dist.all_gather(counts, torch.tensor([float(right), float(len(my_notes))]))
    if rank == 0:
        total = sum(counts)
        print("epoch", epoch, "accuracy", (total[0] / total[1]).item(), flush=True)

dist.destroy_process_group()
