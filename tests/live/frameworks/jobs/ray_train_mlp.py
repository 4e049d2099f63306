"""Ray Train: TorchTrainer with two CPU workers."""

import argparse
import os
import tempfile

import ray
import ray.train
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def dataset():
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(3200, 64, generator=generator)
    return TensorDataset(features, features[:, :4].sum(1, keepdim=True))


def save(model):
    folder = tempfile.mkdtemp()
    torch.save(model.module.state_dict(), os.path.join(folder, "model.pt"))
    return Checkpoint.from_directory(folder)


def train_loop(config):
    torch.manual_seed(0)
    rank = ray.train.get_context().get_world_rank()
    model = prepare_model(
        nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    )
    loader = prepare_data_loader(DataLoader(dataset(), batch_size=16, shuffle=True))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(config["epochs"]):
        for step, (features, target) in enumerate(loader):
            loss = nn.functional.mse_loss(model(features), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"rank {rank} epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        metrics = {"epoch": epoch, "loss": loss.item()}
        if config["report_on_main"]:
            if rank == 0 and epoch % 5 == 4:
                print(f"reporting epoch {epoch}", flush=True)
                ray.train.report(metrics, checkpoint=save(model))
        elif epoch % 5 == 4:
            ray.train.report(metrics, checkpoint=save(model) if rank == 0 else None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2000)
    parser.add_argument("--report-on-main", action="store_true")
    args = parser.parse_args()
    folder = os.environ.get("TMPDIR", "/tmp")
    ray.init(num_cpus=3, include_dashboard=False, _temp_dir=os.path.join(folder, "ray"), object_store_memory=10**8)
    trainer = TorchTrainer(
        train_loop,
        train_loop_config=vars(args),
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(storage_path=os.path.join(folder, "results"), name="mlp"),
    )
    print(trainer.fit().metrics, flush=True)


if __name__ == "__main__":
    main()
