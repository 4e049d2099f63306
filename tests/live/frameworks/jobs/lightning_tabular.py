"""Tabular autoencoder with Lightning: accumulation, EMA, simple profiler, checkpoints copied in the background."""

import argparse
import logging
import os
import queue
import shutil
import threading
import warnings
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.profilers import SimpleProfiler
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
log = logging.getLogger("tabular")


class Table(Dataset):
    def __init__(self, rows=20000, columns=64, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.mix = torch.randn(8, columns, generator=g)
        self.rows = rows

    def __len__(self):
        return self.rows

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        z = torch.randn(8, generator=g)
        row = z @ self.mix
        for _ in range(12):
            row = torch.sin(row) + 0.1 * row
        return row


class AutoEncoder(L.LightningModule):
    def __init__(self, columns=64, hidden=512):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(columns, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 8)
        )
        self.decoder = nn.Sequential(
            nn.Linear(8, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, columns)
        )

    def training_step(self, batch, idx):
        loss = nn.functional.mse_loss(self.decoder(self.encoder(batch)), batch)
        if idx % 20 == 0:
            log.info("epoch %d batch %d loss %.5f", self.current_epoch, idx, loss.item())
        return loss

    def validation_step(self, batch, idx):
        loss = nn.functional.mse_loss(self.decoder(self.encoder(batch)), batch)
        self.log("val_loss", loss, sync_dist=True)

    def on_validation_epoch_end(self):
        log.info("epoch %d validated", self.current_epoch)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class WeightAverage(Callback):
    def __init__(self, decay=0.99):
        self.decay = decay
        self.shadow = None

    @torch.no_grad()
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        if self.shadow is None:
            self.shadow = {k: v.clone() for k, v in module.state_dict().items()}
        for k, v in module.state_dict().items():
            self.shadow[k].lerp_(v, 1 - self.decay)


class Mirror(Callback):
    """Copies new checkpoints to the archive from a thread of the first rank."""

    def __init__(self, source, target):
        self.source, self.target = Path(source), Path(target)
        self.todo = queue.Queue()
        self.seen = set()

    def setup(self, trainer, module, stage):
        if trainer.is_global_zero:
            self.target.mkdir(parents=True, exist_ok=True)
            threading.Thread(target=self._work, name="mirror", daemon=True).start()

    def _work(self):
        while (path := self.todo.get()) is not None:
            if path.exists():
                shutil.copy(path, self.target / path.name)
                log.info("mirrored %s", path.name)

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.is_global_zero and batch_idx % 50 == 0:
            for path in self.source.glob("*.ckpt"):
                if path not in self.seen:
                    self.seen.add(path)
                    self.todo.put(path)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default="runs/tabular")
    ap.add_argument("--workers", type=int, default=1)
    args = ap.parse_args()
    rank = int(os.environ.get("RANK", 0))
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {rank} %(message)s")
    L.seed_everything(5)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=-1,
        accumulate_grad_batches=4,
        limit_val_batches=30,
        enable_progress_bar=False,
        logger=False,
        profiler=SimpleProfiler(),
        enable_model_summary=False,
        callbacks=[
            WeightAverage(),
            Mirror(f"{args.out}/ckpt", f"{args.out}/archive"),
            ModelCheckpoint(f"{args.out}/ckpt", every_n_train_steps=50, save_top_k=-1),
        ],
    )
    load = {"batch_size": 64, "num_workers": args.workers, "persistent_workers": args.workers > 0}
    trainer.fit(AutoEncoder(), DataLoader(Table(), shuffle=True, **load), DataLoader(Table(4000), **load))


if __name__ == "__main__":
    main()
