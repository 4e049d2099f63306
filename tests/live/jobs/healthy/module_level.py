# Everything at module level, all-reduce by hand, no DDP.
import os

import torch
import torch.distributed as dist
from lifetime import Lifetime, parser

args = parser().parse_args()
dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
lifetime = Lifetime(args.seconds)
torch.manual_seed(7)
w1 = (torch.randn(64, 1024) * 0.05).requires_grad_()
w2 = (torch.randn(1024, 1024) * 0.02).requires_grad_()
w3 = (torch.randn(1024, 1) * 0.05).requires_grad_()
params = [w1, w2, w3]
torch.manual_seed(dist.get_rank())
epoch = 0
while lifetime.goes_on():
    running_loss = 0.0
    for i in range(20):
        xb = torch.randn(64, 64)
        yb = xb[:, :1] * xb[:, 1:2]
        loss = ((torch.relu(torch.relu(xb @ w1) @ w2) @ w3 - yb) ** 2).mean()
        loss.backward()
        for p in params:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        with torch.no_grad():
            for p in params:
                p -= 0.01 * p.grad
                p.grad = None
        running_loss += loss.item()
    epoch += 1
    if dist.get_rank() == 0:
        print("epoch", epoch, "loss", running_loss / 20, flush=True)
