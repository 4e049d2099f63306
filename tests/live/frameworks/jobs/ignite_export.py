"""Keyword spotting with ignite; the first process checks an export of the model with an external script."""

import argparse
import json
import logging
import subprocess
import sys
from pathlib import Path

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.handlers import EMAHandler
from ignite.metrics import RunningAverage
from torch import nn

VERIFIER = """
import json, math, sys
weights = json.load(open(sys.argv[1]))
rounds = int(sys.argv[2])
for n in range(rounds):
    for name, values in weights.items():
        q = [round(v * 127) for v in values]
        err = math.sqrt(sum((v - w / 127) ** 2 for v, w in zip(values, q)) / len(q))
        print(f"sample {n:4d} layer {name:24s} int8 error {err:.6f} range {min(q):5d} {max(q):5d}")
print("OK")
"""


class Spotter(nn.Module):
    def __init__(self, mels=40, channels=64, words=12):
        super().__init__()
        self.conv1 = nn.Conv1d(mels, channels, 5, padding=2)
        self.conv2 = nn.Conv1d(channels, channels, 5, padding=2)
        self.gru = nn.GRU(channels, channels, batch_first=True)
        self.out = nn.Linear(channels, words)

    def forward(self, x):
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        return self.out(self.gru(x.transpose(1, 2))[0][:, -1])


def spectrograms(rank, batch, frames=50, words=12):
    g = torch.Generator().manual_seed(rank)
    proto = torch.randn(words, 40, frames, generator=torch.Generator().manual_seed(77))
    while True:
        y = torch.randint(0, words, (batch,), generator=g)
        yield proto[y] + 2 * torch.randn(batch, 40, frames, generator=g), y


class ExportCheck:
    def __init__(self, model, folder, logger, samples=20):
        self.model, self.folder, self.logger, self.samples = model, Path(folder), logger, samples
        self.folder.mkdir(parents=True, exist_ok=True)
        self.script = self.folder / "verify_int8.py"
        self.script.write_text(VERIFIER)
        self.count = 0

    def __call__(self, engine):
        self.count += 1
        path = self.folder / f"weights_{self.count}.json"
        path.write_text(json.dumps({k: v.flatten()[:64].tolist() for k, v in self.model.state_dict().items()}))
        self.logger.info("verifying export %d", self.count)
        proc = subprocess.Popen(
            [sys.executable, str(self.script), str(path), str(self.samples * self.count**2)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if proc.wait() == 0:
            self.logger.info("export %d: %s", self.count, proc.stdout.read().splitlines()[-1])


def run(local_rank, cfg):
    rank = idist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {rank} %(message)s")
    logger = logging.getLogger("spotter")
    torch.manual_seed(13)
    model = idist.auto_model(Spotter())
    optimizer = idist.auto_optim(torch.optim.Adam(model.parameters(), lr=1e-3))

    def update(engine, batch):
        model.train()
        x, y = batch
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        return loss.item()

    trainer = Engine(update)
    RunningAverage(output_transform=lambda x: x).attach(trainer, "loss")

    @trainer.on(Events.ITERATION_COMPLETED(every=10))
    def report(engine):
        logger.info("iteration %d loss %.4f", engine.state.iteration, engine.state.metrics["loss"])

    if rank == 0:
        ema = EMAHandler(model.module, momentum=0.01)
        ema.attach(trainer, event=Events.ITERATION_COMPLETED)
        trainer.add_event_handler(
            Events.ITERATION_COMPLETED(every=cfg["export_every"]), ExportCheck(ema.ema_model, cfg["out"], logger)
        )

    trainer.run(spectrograms(rank, cfg["batch"]), max_epochs=1, epoch_length=1000000)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--export-every", type=int, default=30)
    ap.add_argument("--out", default="runs/export")
    with idist.Parallel(backend="gloo") as parallel:
        parallel.run(run, vars(ap.parse_args()))
