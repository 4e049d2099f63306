"""Detection data: crops are drawn until one of them shows an object."""

import argparse

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scenes(Dataset):
    """Images with boxes; crops of 32 x 32 pixels that contain the middle of a box."""

    def __init__(self, count, empty=()):
        self.count = count
        self.empty = set(empty)

    def __len__(self):
        return self.count

    def boxes(self, index):
        if index in self.empty:
            return np.zeros((0, 2), dtype=np.int64)
        return np.random.default_rng(index).integers(16, 80, (3, 2))

    def __getitem__(self, index):
        rng = np.random.default_rng(index + 10**6)
        image = rng.normal(size=(96, 96)).astype(np.float32)
        boxes = self.boxes(index)
        for y, x in boxes:
            image[y - 4 : y + 4, x - 4 : x + 4] += 3
        while True:
            top, left = rng.integers(0, 64, 2)
            inside = (boxes >= (top, left)).all(1) & (boxes < (top + 32, left + 32)).all(1)
            if inside.any():
                break
        crop = torch.from_numpy(image[top : top + 32, left : left + 32].copy())
        return crop[None], torch.tensor([inside.sum() / 3], dtype=torch.float32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--empty", type=int, nargs="*", default=[])
    parser.add_argument("--epochs", type=int, default=500)
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 5), nn.ReLU(), nn.Flatten(), nn.Linear(3200, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Scenes(2400, args.empty), batch_size=8, shuffle=False)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        for step, (crops, share) in enumerate(loader):
            loss = nn.functional.mse_loss(model(crops), share)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if step % 10 == 0:
                accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
