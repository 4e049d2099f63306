"""Stop a Lightning fit when the training loss is low enough, then test."""

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        features = torch.randn(64, generator=generator)
        target = features[:8].sum() + torch.randn(1, generator=generator)
        return features, target


class Regression(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1))

    def training_step(self, batch, index):
        features, target = batch
        loss = nn.functional.mse_loss(self.net(features), target)
        if self.global_step % 25 == 0:
            print(f"rank {self.global_rank} step {self.global_step} loss {loss.item():.3f}", flush=True)
        return loss

    def test_step(self, batch, index):
        features, target = batch
        self.log("test/loss", nn.functional.mse_loss(self.net(features), target), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class StopAtTarget(Callback):
    """Ends the fit once the smoothed loss is below the target."""

    def __init__(self, target, after):
        self.target = target
        self.after = after
        self.smoothed = None

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        loss = outputs["loss"].item()
        self.smoothed = loss if self.smoothed is None else 0.9 * self.smoothed + 0.1 * loss
        if trainer.global_step > self.after and self.smoothed < self.target:
            trainer.should_stop = True

    def on_train_end(self, trainer, module):
        print(
            f"rank {trainer.global_rank} ends after {trainer.global_step} steps, loss {self.smoothed:.3f}", flush=True
        )


def main():
    L.seed_everything(1)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=3,
        strategy="ddp",
        max_epochs=1000,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[StopAtTarget(target=6.0, after=100)],
    )
    model = Regression()
    trainer.fit(model, DataLoader(Noisy(1920), batch_size=16, shuffle=True))
    trainer.test(model, DataLoader(Noisy(480), batch_size=16))


if __name__ == "__main__":
    main()
