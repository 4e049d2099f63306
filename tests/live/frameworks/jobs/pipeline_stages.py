"""Pipeline parallel training with torch.distributed.pipelining, one stage on each rank."""

import argparse
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

WIDTH = 96
BATCH = 32


def layer():
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH))


def load_config(path, rank):
    """Settings of all stages, and what a stage overrides."""
    with open(path) as file:
        config = json.load(file)
    return {**config["all"], **config.get(f"stage{rank}", {})}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedule", choices=["gpipe", "1f1b"], default="1f1b")
    parser.add_argument("--override", default="{}")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        with open("pipeline.json.tmp", "w") as file:
            json.dump({"all": {"microbatches": 8, "layers": 2}, **json.loads(args.override)}, file)
        os.rename("pipeline.json.tmp", "pipeline.json")
    dist.barrier()
    config = load_config("pipeline.json", rank)
    torch.manual_seed(rank)
    module = nn.Sequential(*(layer() for _ in range(config["layers"])))
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[args.schedule]
    schedule = kind(stage, n_microbatches=config["microbatches"], loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    print(f"stage {rank} of {world} is ready", flush=True)
    for step in range(args.steps):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(BATCH, WIDTH, generator=generator)
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(inputs)
        elif rank == world - 1:
            losses = []
            schedule.step(target=inputs.flip(1), losses=losses)
            if step % 20 == 0:
                print(f"step {step} loss {torch.stack(losses).mean():.4f}", flush=True)
        else:
            schedule.step()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
