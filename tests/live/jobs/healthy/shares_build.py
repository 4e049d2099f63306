"""One rank builds a C++ operator, the other waits for its lock: torch.utils.cpp_extension, with a cold cache."""

import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from lifetime import Lifetime, parser
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.cpp_extension import load_inline

SOURCE = "#include <torch/extension.h>\nat::Tensor twice(at::Tensor x) { return x * 2; }\n"


def main():
    args = parser().parse_args()
    lifetime = Lifetime(args.seconds)
    os.environ["TORCH_EXTENSIONS_DIR"] = os.path.join(os.environ.get("TMPDIR", "/tmp"), "extensions")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.barrier()
    print("compiling", flush=True)
    time.sleep(0.5 * rank)
    operator = load_inline("twice", SOURCE, functions=["twice"])
    model = DDP(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = 0
    while lifetime.goes_on():
        loss = operator.twice(model(torch.randn(32, 64))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
