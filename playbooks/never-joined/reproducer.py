"""Training of a small convolutional classifier of made-up gestures, for one process or many.

torchrun --nproc-per-node 2 reproducer.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CLASSES, STEPS, SENSORS = 6, 96, 8


class Gestures(Dataset):
    """Accelerations of a hand: each class has frequencies of its own."""

    def __init__(self, size=3072):
        generator = torch.Generator().manual_seed(3)
        self.labels = torch.randint(0, CLASSES, (size,), generator=generator)
        phase = 6.3 * torch.rand(size, SENSORS, 1, generator=generator)
        time = torch.linspace(0, 1, STEPS)
        self.signals = torch.sin(phase + 6.3 * (self.labels[:, None, None] + 1) * time)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.signals[index] + 0.3 * torch.randn(SENSORS, STEPS), self.labels[index]


class Classifier(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(SENSORS, width, 7, padding=3),
            nn.ReLU(),
            nn.Conv1d(width, width, 7, stride=2, padding=3),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        return self.head(self.body(x))


class Processes:
    """The processes of the run, and the device of this one."""

    def __init__(self):
        self.rank = int(os.environ.get("RANK", 0))
        self.world = int(os.environ.get("WORLD_SIZE", 1))
        self.device = torch.device("cpu")
        if torch.cuda.is_available():
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
            if self.world > 1:
                dist.init_process_group("nccl")


def train(rank, device, epochs=20_000, batch_size=64):
    torch.manual_seed(rank)
    data = Gestures()
    sampler = DistributedSampler(data) if dist.is_initialized() else None
    loader = DataLoader(data, batch_size=batch_size, sampler=sampler, shuffle=sampler is None, drop_last=True)
    model = Classifier().to(device)
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        for step, (signals, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(signals.to(device)), labels.to(device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    processes = Processes()
    train(processes.rank, processes.device)
