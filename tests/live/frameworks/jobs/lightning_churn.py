"""Churn classifier on tabular data with Lightning: losses of the epoch, accuracy of the validation set."""

import argparse
import logging
import os
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryAUROC

warnings.filterwarnings("ignore")
log = logging.getLogger("churn")


def customers(count, seed, columns=40):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, columns, generator=g)
    score = x[:, :10].sum(1) + 0.5 * x[:, 10] * x[:, 11] + torch.randn(count, generator=g)
    return TensorDataset(x, (score > 0).long())


class Churn(L.LightningModule):
    def __init__(self, columns=40, hidden=384, auroc_from=None):
        super().__init__()
        self.net = nn.Sequential(
            nn.BatchNorm1d(columns),
            nn.Linear(columns, hidden),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )
        self.auroc = BinaryAUROC(thresholds=200)
        self.auroc_from = auroc_from

    def forward(self, x):
        return self.net(x).squeeze(1)

    def training_step(self, batch, idx):
        x, y = batch
        loss = nn.functional.binary_cross_entropy_with_logits(self(x), y.float())
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        if idx % 20 == 0:
            log.info("epoch %d batch %d loss %.4f", self.current_epoch, idx, loss.item())
        return loss

    def validation_step(self, batch, idx):
        x, y = batch
        self.auroc.update(torch.sigmoid(self(x)), y)
        if self.auroc_from is None:
            self.log("auroc", self.auroc)

    def on_validation_epoch_end(self):
        if self.auroc_from is not None and self.trainer.is_global_zero and self.current_epoch >= self.auroc_from:
            log.info("epoch %d AUROC %.4f", self.current_epoch, self.auroc.compute())
            self.auroc.reset()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=1e-2)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--auroc-from", type=int)
    ap.add_argument("--epochs", type=int, default=200)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {os.environ.get('RANK', 0)} %(message)s")
    L.seed_everything(3)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=args.epochs,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    train, test = DataLoader(customers(12000, 0), batch_size=64, shuffle=True), DataLoader(customers(2000, 1), 250)
    trainer.fit(Churn(auroc_from=args.auroc_from), train, test)


if __name__ == "__main__":
    main()
