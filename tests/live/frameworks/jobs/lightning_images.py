"""A Lightning module with metrics, checkpoints and an averaged copy of the weights."""

import argparse

import lightning as L
import torch
import torchmetrics
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset


def digits(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    images = torch.rand(count, 1, 28, 28, generator=generator)
    images[torch.arange(count), 0, labels * 2] += 1
    return TensorDataset(images, labels)


class Classifier(L.LightningModule):
    def __init__(self, epoch_accuracy=False):
        super().__init__()
        self.epoch_accuracy = epoch_accuracy
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 5), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(3200, 10)
        )
        self.train_accuracy = torchmetrics.Accuracy("multiclass", num_classes=10)
        self.valid_accuracy = torchmetrics.Accuracy("multiclass", num_classes=10)

    def training_step(self, batch, index):
        images, labels = batch
        logits = self.net(images)
        loss = nn.functional.cross_entropy(logits, labels)
        self.train_accuracy.update(logits, labels)
        if index % 20 == 0 and self.trainer.is_global_zero:
            print(f"epoch {self.current_epoch} batch {index} loss {loss.item():.3f}", flush=True)
        return loss

    def validation_step(self, batch, index):
        images, labels = batch
        logits = self.net(images)
        self.valid_accuracy(logits, labels)
        self.log("valid/loss", nn.functional.cross_entropy(logits, labels), sync_dist=True)
        self.log("valid/accuracy", self.valid_accuracy)

    def on_train_epoch_end(self):
        if self.epoch_accuracy and self.trainer.is_global_zero:
            print(f"end of epoch {self.current_epoch}", flush=True)
            print(f"train accuracy {self.train_accuracy.compute():.3f}", flush=True)
        self.train_accuracy.reset()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Averaging(Callback):
    def on_fit_start(self, trainer, module):
        self.average = AveragedModel(module.net, multi_avg_fn=get_ema_multi_avg_fn(0.99))

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.average.update_parameters(module.net)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--epoch-accuracy", action="store_true")
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    L.seed_everything(7)
    train = DataLoader(digits(3200, 1), batch_size=16, shuffle=True)
    valid = DataLoader(digits(640, 2), batch_size=32)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=args.ranks,
        strategy="ddp",
        max_epochs=args.epochs,
        logger=False,
        enable_progress_bar=False,
        default_root_dir="out",
        callbacks=[Averaging(), ModelCheckpoint(dirpath="out", every_n_epochs=1, monitor="valid/loss", save_top_k=2)],
        check_val_every_n_epoch=1 if not args.epoch_accuracy else 5,
    )
    trainer.fit(Classifier(args.epoch_accuracy), train, valid)


if __name__ == "__main__":
    main()
