"""fully_shard on audio clips, which each rank filters in its own loop."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Clips(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        return torch.randn(64, generator=torch.Generator().manual_seed(index)), index % 10


def denoise(clips, passes):
    for _ in range(passes):
        spectrum = torch.fft.rfft(clips, dim=1)
        clips = torch.fft.irfft(spectrum, n=clips.shape[1], dim=1)
        clips = (clips - clips.mean(1, keepdim=True)) / (clips.std(1, keepdim=True) + 1e-5)
    return clips


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--noisy-shard", type=int, default=-1)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    widths = [64] + 6 * [256]
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(a, b), nn.GELU()) for a, b in zip(widths, widths[1:])), nn.Linear(256, 10)
    )
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    clips = Clips()
    sampler = DistributedSampler(clips)
    passes = 1500 if dist.get_rank() == args.noisy_shard else 2
    for epoch in range(1000):
        sampler.set_epoch(epoch)
        for step, (batch, labels) in enumerate(DataLoader(clips, batch_size=32, sampler=sampler)):
            loss = nn.functional.cross_entropy(model(denoise(batch, passes)), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 20 and dist.get_rank() == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)


main()
