"""Image classification with a plain Accelerate loop."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def blobs(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    images = torch.randn(count, 3, 24, 24, generator=generator) * 0.7
    images[torch.arange(count), 0, labels * 2, labels * 2] += 3
    return TensorDataset(images, labels)


def build_model():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(1024, 10),
    )


@torch.no_grad()
def evaluate(accelerator, model, loader):
    model.eval()
    right = total = 0
    for images, labels in loader:
        predictions = model(images).argmax(-1)
        predictions, labels = accelerator.gather_for_metrics((predictions, labels))
        right += (predictions == labels).sum().item()
        total += labels.numel()
    model.train()
    return right / total


def report(accelerator, epoch, step, loss):
    if accelerator.is_main_process:
        mean = accelerator.gather(loss.detach().reshape(1)).mean().item()
        accelerator.print(f"epoch {epoch} step {step} mean loss {mean:.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--mean-loss-every", type=int, default=0)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(42)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2000)
    train = DataLoader(blobs(2000, 1), batch_size=args.batch, shuffle=True, drop_last=True)
    valid = DataLoader(blobs(333, 2), batch_size=args.batch)
    model, optimizer, train, valid, schedule = accelerator.prepare(model, optimizer, train, valid, schedule)

    for epoch in range(args.epochs):
        for step, (images, labels) in enumerate(train):
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if step % 10 == 0:
                accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            if args.mean_loss_every and step and step % args.mean_loss_every == 0:
                report(accelerator, epoch, step, loss)
        accuracy = evaluate(accelerator, model, valid)
        accelerator.print(f"epoch {epoch} accuracy {accuracy:.3f}")
        accelerator.save_state("state")
    accelerator.end_training()


if __name__ == "__main__":
    main()
