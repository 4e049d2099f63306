"""Segmentation with Lightning Fabric and gradient accumulation."""

import argparse
import logging
import os

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, Dataset

log = logging.getLogger("segment")


class Discs(Dataset):
    """Noisy images with a few discs, and their masks."""

    def __init__(self, size, side=48):
        self.size, self.side = size, side
        self.yy, self.xx = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        mask = torch.zeros(self.side, self.side, dtype=torch.bool)
        for cx, cy, r in torch.rand(3, 3, generator=g):
            mask |= (self.xx - cx * self.side) ** 2 + (self.yy - cy * self.side) ** 2 < (3 + 6 * r) ** 2
        image = mask.float() + 0.8 * torch.randn(self.side, self.side, generator=g)
        return image[None], mask.float()[None]


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, w=12):
        super().__init__()
        self.down1, self.down2, self.middle = conv(1, w), conv(w, 2 * w), conv(2 * w, 2 * w)
        self.up1, self.up2, self.out = conv(4 * w, w), conv(2 * w, w), nn.Conv2d(w, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.middle(F.max_pool2d(b, 2))
        d = self.up1(torch.cat([b, F.interpolate(c, scale_factor=2)], 1))
        return self.out(self.up2(torch.cat([a, F.interpolate(d, scale_factor=2)], 1)))


def dice(logits, mask):
    p = logits.sigmoid()
    return 1 - (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1)


class Trainer:
    def __init__(self, fabric, model, optimizer, accumulate):
        self.fabric, self.model, self.optimizer = fabric, model, optimizer
        self.accumulate = accumulate
        self.updates = 0

    def epoch(self, number, loader):
        total = 0.0
        for i, (image, mask) in enumerate(loader):
            last = (i + 1) % self.accumulate == 0
            with self.fabric.no_backward_sync(self.model, enabled=last):
                logits = self.model(image)
                loss = F.binary_cross_entropy_with_logits(logits, mask) + dice(logits, mask)
                self.fabric.backward(loss / self.accumulate)
            total += loss.item()
            if last:
                self.fabric.clip_gradients(self.model, self.optimizer, max_norm=1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.updates += 1
                if self.updates % 10 == 0:
                    log.info("epoch %d update %d loss %.4f", number, self.updates, loss.item())
        return total / len(loader)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=1000)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--accumulate", type=int, default=2)
    ap.add_argument("--out", default="runs/segment")
    args = ap.parse_args()
    fabric = Fabric(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp")
    fabric.launch()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {fabric.global_rank} %(message)s")
    fabric.seed_everything(3)
    model = UNet()
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=2e-3))
    loader = fabric.setup_dataloaders(DataLoader(Discs(4096), batch_size=args.batch, shuffle=True, drop_last=True))
    trainer = Trainer(fabric, model, optimizer, args.accumulate)
    for epoch in range(args.epochs):
        loss = trainer.epoch(epoch, loader)
        mean = fabric.all_reduce(torch.tensor(loss)).item()
        fabric.print(f"epoch {epoch} mean loss {mean:.4f}")
        fabric.save(f"{args.out}/last.ckpt", {"model": model, "optimizer": optimizer, "epoch": epoch})


if __name__ == "__main__":
    main()
