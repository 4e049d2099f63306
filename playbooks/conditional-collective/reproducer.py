"""Train on short audio clips of which some are labelled: reconstruct all, classify those with a label.

torchrun --nproc-per-node 3 reproducer.py [--variant grad|rank0|clock]
"""

import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CLASSES = 6
CLIP = 400


def make_clips(rank, size, labelled=0.35):
    """Tones in noise; the label is -1 if the clip is not labelled yet."""
    generator = torch.Generator().manual_seed(rank)
    tones = torch.randint(CLASSES, (size,), generator=generator)
    phases = torch.rand(size, 1, generator=generator) * 6.283
    time_axis = torch.linspace(0, 1, CLIP)
    clips = torch.sin(6.283 * 4 * (tones[:, None] + 1) * time_axis + phases)
    clips += 0.3 * torch.randn(size, CLIP, generator=generator)
    known = torch.rand(size, generator=generator) < labelled
    return clips, torch.where(known, tones, -1)


class ClipModel(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(CLIP, width), nn.ReLU(), nn.Linear(width, 64))
        self.decoder = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, CLIP))
        self.classifier = nn.Linear(64, CLASSES)

    def forward(self, clips):
        code = self.encoder(clips)
        return self.decoder(code), self.classifier(code)


# --- gradients averaged by hand -----------------------------------------------------------------------


def semi_supervised_loss(model, clips, labels):
    code = model.encoder(clips)
    loss = F.mse_loss(model.decoder(code), clips)
    known = labels >= 0
    if known.any():
        loss = loss + 0.1 * F.cross_entropy(model.classifier(code[known]), labels[known])
    return loss


def average_gradients(model, world_size):
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size


def log_losses(loss, rank, world_size, step):
    losses = [torch.zeros(1) for _ in range(world_size)]
    dist.all_gather(losses, loss.detach().reshape(1))
    if rank == 0:
        print(f"step {step} loss {torch.cat(losses).mean().item():.4f}", flush=True)


def train_semi_supervised(rank, world_size, batch_size=12):
    clips, labels = make_clips(rank, 6000)
    model = ClipModel()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(50):
        order = torch.randperm(len(clips), generator=torch.Generator().manual_seed(epoch))
        for step, batch in enumerate(order.split(batch_size)):
            optimizer.zero_grad()
            loss = semi_supervised_loss(model, clips[batch], labels[batch])
            loss.backward()
            average_gradients(model, world_size)
            optimizer.step()
            log_losses(loss, rank, world_size, step)


# --- trainers -----------------------------------------------------------------------------------------


class Trainer:
    """DDP; a checkpoint every `save_every` steps, in a folder that rank 0 made."""

    save_every = 50

    def __init__(self, rank, world_size):
        self.rank = rank
        self.world_size = world_size
        self.folder = tempfile.mkdtemp(prefix="clips-") if rank == 0 else None
        self.clips, self.labels = make_clips(rank, 4000, labelled=1.0)
        self.model = DistributedDataParallel(ClipModel())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.global_step = 0

    def batches(self, batch_size=32):
        order = torch.randperm(len(self.clips))
        for start in range(0, len(order) - batch_size + 1, batch_size):
            index = order[start : start + batch_size]
            yield self.clips[index], self.labels[index]

    def train_step(self, clips, labels):
        rebuilt, logits = self.model(clips)
        loss = F.mse_loss(rebuilt, clips) + 0.1 * F.cross_entropy(logits, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def save_checkpoint(self):
        path = os.path.join(self.folder, f"step-{self.global_step:06d}.pt")
        torch.save({"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict()}, path + ".part")
        os.replace(path + ".part", path)
        dist.barrier()  # complete before anybody reads it
        print("saved", path, flush=True)

    def after_step(self):
        if self.rank == 0 and self.global_step % self.save_every == 0:
            self.save_checkpoint()

    def fit(self, epochs):
        for _ in range(epochs):
            for clips, labels in self.batches():
                loss = self.train_step(clips, labels)
                self.global_step += 1
                if self.rank == 0 and self.global_step % 10 == 1:
                    print(f"step {self.global_step} loss {loss:.4f}", flush=True)
                self.after_step()


class TimedTrainer(Trainer):
    """Saves every few seconds instead, each rank the state of its own data stream in one file."""

    save_interval_s = 4.0

    def __init__(self, rank, world_size):
        self.last_save = time.monotonic()
        super().__init__(rank, world_size)
        if rank > 0:
            self.warm_up_cache()
            self.last_save = time.monotonic()

    def warm_up_cache(self):
        for clip in self.clips:
            torch.fft.rfft(clip).abs().topk(5)

    def data_state(self):
        return {"rank": self.rank, "step": self.global_step, "rng": torch.get_rng_state()}

    def after_step(self):
        if time.monotonic() - self.last_save >= self.save_interval_s:
            states = [None] * self.world_size
            dist.all_gather_object(states, self.data_state())
            if self.rank == 0:
                torch.save(
                    {"model": self.model.module.state_dict(), "data": states}, os.path.join(self.folder, "last.pt")
                )
            self.last_save = time.monotonic()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("grad", "rank0", "clock"), default="grad")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    if args.variant == "grad":
        train_semi_supervised(rank, world_size)
    elif args.variant == "rank0":
        Trainer(rank, world_size).fit(epochs=100)
    else:
        TimedTrainer(rank, world_size).fit(epochs=1000)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
