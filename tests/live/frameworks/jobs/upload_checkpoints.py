"""Accelerate; the main process uploads each checkpoint with the command-line client of the store."""

import argparse
import socket
import subprocess
import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLIENT = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[2]))) as store, open(sys.argv[1], "rb") as file:
    store.sendfile(file)
    store.shutdown(socket.SHUT_WR)
    assert store.recv(2) == b"ok"
"""


def upload(path, port):
    subprocess.run([sys.executable, "-c", CLIENT, path, str(port)], check=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=500)
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    store = socket.create_server(("127.0.0.1", 0)) if accelerator.is_main_process else None
    torch.manual_seed(0)
    x = torch.randn(1600, 64)
    loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        for step, (features, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(features), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if step % 20 == 0:
                accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
        if accelerator.is_main_process:
            path = f"epoch-{epoch}.pt"
            torch.save(accelerator.unwrap_model(model).state_dict(), path)
            print(f"uploading {path}", flush=True)
            upload(path, store.getsockname()[1])
        accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
