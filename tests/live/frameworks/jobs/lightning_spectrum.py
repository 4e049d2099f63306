"""Vision-MLP classifier with Lightning and a monitor of the weights' spectra."""

import argparse
import logging
import os
import time
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
log = logging.getLogger("mlp")


class Patches(Dataset):
    def __init__(self, size=60000, dim=256, classes=20):
        self.proto = torch.randn(classes, dim, generator=torch.Generator().manual_seed(2))
        self.size, self.classes = size, classes

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        label = i % self.classes
        return self.proto[label] + 2 * torch.randn(self.proto.shape[1], generator=g), label


class Classifier(L.LightningModule):
    def __init__(self, dim=256, hidden=640, depth=4, classes=20, lr=3e-4):
        super().__init__()
        self.save_hyperparameters()
        layers = [nn.Linear(dim, hidden), nn.GELU()]
        for _ in range(depth):
            layers += [nn.LayerNorm(hidden), nn.Linear(hidden, hidden), nn.GELU()]
        self.net = nn.Sequential(*layers, nn.Linear(hidden, classes))
        self.began = time.time()

    def training_step(self, batch, idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        if idx % 5 == 0:
            log.info("step %d loss %.4f (%.1f s)", self.global_step, loss.item(), time.time() - self.began)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


class SpectrumMonitor(Callback):
    """Stable rank and condition of each weight matrix, for the dashboard."""

    def __init__(self, every_n_steps=100, path="spectrum.csv"):
        self.every_n_steps = every_n_steps
        self.path = path
        self.rows = []

    @rank_zero_only
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step >= self.every_n_steps:
            self.measure(trainer.global_step, module)
        if len(self.rows) > 50:
            self.flush()

    @torch.no_grad()
    def measure(self, step, module):
        for name, p in module.named_parameters():
            if p.ndim != 2:
                continue
            u, s, v = torch.linalg.svd(p, full_matrices=False)
            sharpness = (u[:, :8].T @ p @ v[:8].T).diagonal().sum()
            self.rows.append(
                (step, name, (s.square().sum() / s[0] ** 2).item(), (s[0] / s[-1]).item(), sharpness.item())
            )

    def flush(self):
        with open(self.path, "a") as out:
            for row in self.rows:
                out.write(",".join(map(str, row)) + "\n")
        self.rows.clear()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--spectrum-every", type=int, default=40)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {os.environ.get('RANK', 0)} %(message)s")
    L.seed_everything(1)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=50,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        callbacks=[SpectrumMonitor(args.spectrum_every)],
    )
    trainer.fit(Classifier(), DataLoader(Patches(), batch_size=args.batch, shuffle=True))


if __name__ == "__main__":
    main()
