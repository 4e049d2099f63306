"""A profiler run: every so many steps a window is traced, and rank 0 pauses to write the trace."""

import os
import tempfile

import torch
import torch.distributed as dist
from lifetime import Lifetime, parser
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule


def write(profiler):
    path = os.path.join(tempfile.gettempdir(), f"trace-{profiler.step_num}.json")
    profiler.export_chrome_trace(path)
    print(f"wrote {os.path.getsize(path) >> 10} KiB of trace", flush=True)
    os.remove(path)


def main():
    lifetime = Lifetime(parser().parse_args().seconds)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    blocks = [nn.TransformerEncoderLayer(96, 4, 192, dropout=0.0, batch_first=True) for _ in range(8)]
    model = DistributedDataParallel(nn.Sequential(*blocks, nn.Linear(96, 8)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    plan = schedule(wait=12, warmup=2, active=16)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=plan,
        on_trace_ready=write if rank == 0 else None,
        record_shapes=True,
        with_stack=True,
    ) as profiler:
        step = 0
        while lifetime.goes_on():
            tokens = torch.randn(8, 24, 96)
            loss = (model(tokens).mean(1) - tokens[:, 0, :8]).square().mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            profiler.step()
            step += 1
            if rank == 0 and step % 5 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
