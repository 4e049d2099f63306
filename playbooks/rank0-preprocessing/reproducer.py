"""Fine-tune a tiny language model in two stages; rank 0 tokenises the text of each stage, and its peers wait for it.

torchrun --nproc-per-node 3 reproducer.py [--variant pool|executor]
"""

import argparse
import multiprocessing
import random
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SYLLABLES = ["ba", "ko", "mi", "ru", "ta", "le", "so", "ni", "fu", "ga"]


def story(seed, words):
    rng = random.Random(seed)
    return " ".join("".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(words))


def byte_pairs(text, merges):
    """Byte-pair encoding as in the first textbook: the whole text is gone through for every merge."""
    tokens = list(text)
    for _ in range(merges):
        pairs = Counter(zip(tokens, tokens[1:]))
        if not pairs:
            break
        best = max(pairs, key=pairs.get)
        merged, i = [], 0
        while i < len(tokens):
            if tuple(tokens[i : i + 2]) == best:
                merged.append(tokens[i] + tokens[i + 1])
                i += 2
            else:
                merged.append(tokens[i])
                i += 1
        tokens = merged
    return [hash(token) % 1000 for token in tokens]


def tokenise(job):
    seed, words, merges = job
    return byte_pairs(story(seed, words), merges)


def prepare(how, stories, words, merges):
    jobs = [(seed, words, merges) for seed in range(stories)]
    if how == "executor":
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
            return list(executor.map(tokenise, jobs))
    with multiprocessing.Pool(2) as pool:
        return pool.map(tokenise, jobs, chunksize=4)


@contextmanager
def first_on_main():
    """Rank 0 goes first; its peers find the result."""
    if dist.get_rank() != 0:
        dist.barrier()
    yield
    if dist.get_rank() == 0:
        dist.barrier()


def train(model, optimizer, tokens, steps):
    for step in range(steps):
        window = torch.randint(0, 1000, (16, 24)) if tokens is None else tokens
        logits = model(window[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"stage done, loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("pool", "executor"), default="pool")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(1000, 32), nn.Linear(32, 1000)))
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, None, 40)
    with first_on_main():
        if dist.get_rank() == 0:
            texts = prepare(args.variant, stories=400, words=1500, merges=200)
            print(f"{sum(map(len, texts))} tokens", flush=True)
    train(model, optimizer, None, 10_000)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
