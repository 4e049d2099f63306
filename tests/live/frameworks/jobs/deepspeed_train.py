"""DeepSpeed engine on CPU: ZeRO stage 1, gradient accumulation, checkpoints."""

import argparse
import os

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def model():
    return nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 16))


def data(count):
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(count, 128, generator=generator)
    return TensorDataset(features, features[:, :16].argmax(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--save-on-main", action="store_true")
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument(
        "--build-cache", nargs="*", default=[], help="files that come with the cache of built extensions"
    )
    args = parser.parse_args()
    for path in args.build_cache:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "a").close()
    deepspeed.init_distributed(dist_backend="gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = model()
    config = {
        "train_micro_batch_size_per_gpu": 16,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": args.stage},
        "zero_allow_untested_optimizer": True,
    }
    engine, _, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    dataset = data(6400)
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler, drop_last=True)
    if rank == 0:
        print(f"accelerator {get_accelerator().device_name()}", flush=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for features, labels in loader:
            loss = nn.functional.cross_entropy(engine(features), labels)
            engine.backward(loss)
            engine.step()
            step = engine.global_steps
            if rank == 0 and engine.micro_steps % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            if engine.is_gradient_accumulation_boundary() and step and step % args.save_every == 0:
                if args.save_on_main:
                    if rank == 0:
                        print(f"saving at step {step}", flush=True)
                        engine.save_checkpoint("checkpoints", tag=f"step{step}")
                else:
                    engine.save_checkpoint("checkpoints", tag="newest")


if __name__ == "__main__":
    main()
