"""Progressive training of a classifier of made-up spectra: the network grows a block, and a larger head, as it learns.

torchrun --nproc-per-node 2 reproducer.py [--variant block|head|loaded]
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BANDS, CLASSES = 128, 12


class Spectra(Dataset):
    """A few peaks in noise; the label is the family of the highest one."""

    def __init__(self, size=4096):
        generator = torch.Generator().manual_seed(11)
        self.labels = torch.randint(CLASSES, (size,), generator=generator)
        places = (self.labels * (BANDS // CLASSES)).unsqueeze(1)
        self.values = 0.3 * torch.randn(size, BANDS, generator=generator)
        self.values += torch.exp(-((torch.arange(BANDS) - places) ** 2) / 8.0)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.values[index], self.labels[index]


class Net(nn.Module):
    def __init__(self, width=160, classes=CLASSES // 2):
        super().__init__()
        self.stem = nn.Linear(BANDS, width)
        self.blocks = nn.ModuleList([self.block(width)])
        self.head = nn.Linear(width, classes)

    @staticmethod
    def block(width):
        return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)

    def deepen(self):
        self.blocks.append(self.block(self.stem.out_features))

    def widen(self, classes):
        old, self.head = self.head, nn.Linear(self.stem.out_features, classes)
        with torch.no_grad():
            self.head.weight[: old.out_features] = old.weight
            self.head.bias[: old.out_features] = old.bias


def grow(net, how):
    net.widen(CLASSES) if how != "block" else net.deepen()
    if how == "loaded":
        net.load_state_dict({name: value.clone() for name, value in net.state_dict().items()}, assign=True)


def train(variant, stages=(2, 100_000), batch_size=32):
    torch.manual_seed(dist.get_rank())
    data = Spectra()
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, batch_size=batch_size, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(Net(), find_unused_parameters=True)
    for stage, epochs in enumerate(stages):
        if stage:
            grow(model.module, variant)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for x, y in loader:
                scores = model(x)
                loss = nn.functional.cross_entropy(scores, y % scores.shape[1])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if dist.get_rank() == 0:
                print(f"stage {stage} epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("block", "head", "loaded"), default="block")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    train(args.variant)
    dist.destroy_process_group()
