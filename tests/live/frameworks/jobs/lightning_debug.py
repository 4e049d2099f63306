"""A Lightning fit with an ipdb call for batches whose loss explodes."""

import argparse

import ipdb
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Series(Dataset):
    """Windows of a series; a few have a spike."""

    def __init__(self, count, spikes):
        self.count = count
        self.spikes = spikes

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        window = torch.randn(48, generator=generator).cumsum(0)
        if index in self.spikes:
            window = window * 1e6
        return window[:-1], window[-1:]


class Forecaster(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(47, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))

    def training_step(self, batch, index):
        window, target = batch
        loss = nn.functional.mse_loss(self.net(window), target)
        if index % 20 == 0:
            print(f"rank {self.global_rank} batch {index} loss {loss.item():.3f}", flush=True)
        if loss > 1e6:
            print("loss explodes", flush=True)
            ipdb.set_trace()
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--spikes", type=int, nargs="*", default=[1801])
    args = parser.parse_args()
    L.seed_everything(1)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=400,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Forecaster(), DataLoader(Series(3200, args.spikes), batch_size=8, shuffle=False))


if __name__ == "__main__":
    main()
