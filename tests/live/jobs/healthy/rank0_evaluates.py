"""Rank 0 evaluates alone on the whole validation set, 20 s and more, while the others wait in a barrier."""

import time

import torch
import torch.distributed as dist
import torch.nn as nn
from lifetime import Lifetime, parser
from torch.nn.parallel import DistributedDataParallel as DDP


def synthetic_images(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    images = torch.randn(count, 1, 28, 28, generator=generator)
    images[torch.arange(count), 0, labels, labels] += 4
    return images, labels


@torch.no_grad()
def evaluate(model, seconds):
    """Accuracy over as many fresh images as fit in `seconds`."""
    model.eval()
    right = seen = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        images, labels = synthetic_images(128, seed=seen)
        right += (model(images).argmax(1) == labels).sum().item()
        seen += len(labels)
    model.train()
    return right / seen, seen


def main():
    options = parser()
    options.add_argument("--evaluation-seconds", type=float, default=25)
    args = options.parse_args()
    lifetime = Lifetime(args.seconds)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(
        nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4608, 10)
        )
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    epoch = 0
    while lifetime.goes_on():
        for batch in range(25):
            images, labels = synthetic_images(32, seed=1000 * batch + rank)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}, evaluating", flush=True)
            accuracy, seen = evaluate(model.module, args.evaluation_seconds)
            print(f"epoch {epoch} accuracy {accuracy:.3f} of {seen}", flush=True)
        dist.barrier()
        epoch += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
