"""DDP image captioner; one node writes snapshots in a thread, with the training statistics of that moment."""

import argparse
import io
import logging
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

log = logging.getLogger("caption")


class Captioner(nn.Module):
    def __init__(self, vocab=200, dim=96):
        super().__init__()
        self.vision = nn.Sequential(
            nn.Conv2d(3, 24, 5, stride=2),
            nn.ReLU(),
            nn.Conv2d(24, dim, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.words = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, image, caption):
        return self.out(self.rnn(self.words(caption), self.vision(image)[None])[0])


class Progress:
    """Statistics of the training, which the trainer writes and others read."""

    def __init__(self, vocab=200):
        self.lock = threading.Lock()
        self.loss = MeanMetric(sync_on_compute=False)
        self.accuracy = MulticlassAccuracy(vocab, average="micro", sync_on_compute=False)

    def summary(self):
        with self.lock:
            return {"loss": self.loss.compute().item(), "accuracy": self.accuracy.compute().item()}


class Snapshots:
    """Writes the weights every `period` seconds; `best` keeps the step with the best loss."""

    def __init__(self, model, progress, folder, period):
        self.model, self.progress = model, progress
        self.folder, self.period = Path(folder), period
        self.lock = threading.Lock()
        self.best = (float("inf"), 0)
        self.count = 0

    def start(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        threading.Thread(target=self.run, name="snapshots", daemon=True).start()
        return self

    def run(self):
        while True:
            time.sleep(self.period)
            self.write()

    def write(self):
        with self.lock:
            buffer = io.BytesIO()
            torch.save({"model": self.model.state_dict(), "best": self.best}, buffer)
            path = self.folder / f"snapshot_{self.count % 3}.pt"
            self.upload(path, buffer.getvalue())
            path.with_suffix(".txt").write_text(str(self.progress.summary()))
            self.count += 1

    def upload(self, path, data, chunk=2**16):
        with open(path, "wb") as out:
            for at in range(0, len(data), chunk):
                out.write(data[at : at + chunk])
                time.sleep(0.05)

    def note(self, loss, step):
        with self.lock:
            self.best = min(self.best, (loss, step))


def examples(rank, batch, vocab=200):
    g = torch.Generator().manual_seed(rank)
    colour = torch.randn(vocab, 3, 1, 1, generator=torch.Generator().manual_seed(0))
    while True:
        first = torch.randint(0, vocab, (batch, 1), generator=g)
        caption = (first + torch.arange(13) * 7) % vocab
        yield colour[first[:, 0]] + 0.3 * torch.randn(batch, 3, 40, 40, generator=g), caption


def train(args, rank, model, optimizer):
    progress = Progress()
    snapshots = Snapshots(model.module, progress, args.out, args.period).start() if rank == args.snapshot_rank else None
    for step, (image, caption) in enumerate(examples(rank, args.batch), 1):
        logits = model(image, caption[:, :-1]).flatten(0, 1)
        target = caption[:, 1:].flatten()
        loss = nn.functional.cross_entropy(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with progress.lock:
            progress.loss.update(loss.item())
            progress.accuracy.update(logits.detach(), target)
            if snapshots is not None and step % 5 == 0:
                snapshots.note(progress.loss.compute().item(), step)
        if step % 10 == 0:
            log.info("step %d %s", step, progress.summary())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--period", type=float, default=6.0)
    ap.add_argument("--snapshot-rank", type=int, default=1)
    ap.add_argument("--out", default="runs/caption")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {rank} %(message)s")
    torch.manual_seed(0)
    model = DistributedDataParallel(Captioner())
    train(args, rank, model, torch.optim.AdamW(model.parameters(), lr=1e-3))


if __name__ == "__main__":
    main()
