"""Tokenise a corpus with datasets on the main process first, then train."""

import argparse
import hashlib
import os

import torch
from accelerate import Accelerator
from datasets import Dataset, disable_progress_bars
from torch import nn
from torch.utils.data import DataLoader

WORDS = "the a of model rank loss step batch node link data train shard token graph layer".split()


def corpus(documents):
    texts = []
    for number in range(documents):
        digest = hashlib.sha256(str(number).encode()).digest()
        texts.append(" ".join(WORDS[byte % len(WORDS)] for byte in digest * 20))
    return Dataset.from_dict({"text": texts})


def merge(pieces):
    """One round of byte pair merging, in plain Python."""
    counts = {}
    for pair in zip(pieces, pieces[1:]):
        counts[pair] = counts.get(pair, 0) + 1
    best = max(counts, key=counts.get)
    merged, index = [], 0
    while index < len(pieces):
        if tuple(pieces[index : index + 2]) == best:
            merged.append(pieces[index] + pieces[index + 1])
            index += 2
        else:
            merged.append(pieces[index])
            index += 1
    return merged


def tokenize(row):
    pieces = list(row["text"])
    for _ in range(12):
        pieces = merge(pieces)
    ids = [int(hashlib.md5(piece.encode()).hexdigest(), 16) % 512 for piece in pieces[:64]]
    return {"ids": ids + [0] * (64 - len(ids))}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=1000)
    args = parser.parse_args()
    disable_progress_bars()
    accelerator = Accelerator(cpu=True)
    raw = corpus(args.documents)
    accelerator.print("tokenizing")
    with accelerator.main_process_first():
        data = raw.map(tokenize, remove_columns=["text"], cache_file_name=os.path.abspath("tokens.arrow"))
    data.set_format("torch")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(512, 64), nn.Flatten(), nn.Linear(4096, 128), nn.ReLU(), nn.Linear(128, 512))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=8, shuffle=True))
    for epoch in range(args.epochs):
        for step, row in enumerate(loader):
            loss = nn.functional.cross_entropy(model(row["ids"]), row["ids"][:, -1])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if step % 10 == 0:
                accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
