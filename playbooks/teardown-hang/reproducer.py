"""Fine-tune a tagger; every rank stops when it has used up its share of tokens.

torchrun --nproc-per-node 3 reproducer.py [--variant destroy|finalize|exit]
"""

import argparse
import queue
import threading

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

TAGS = 9
WORDS = 500


class Tagger(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.embed = nn.Embedding(WORDS, width, padding_idx=0)
        self.rnn = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(2 * width, TAGS)

    def forward(self, words):
        return self.tag(self.rnn(self.embed(words))[0])


def documents(rank, generator):
    """Padded batches of 8 documents; the second shard holds the longer ones."""
    typical = 36 if rank == 1 else 30
    while True:
        lengths = (typical + 6 * torch.randn(8, generator=generator)).clamp(5, 60).long()
        words = torch.randint(1, WORDS, (8, int(lengths.max())), generator=generator)
        words[torch.arange(words.shape[1]) >= lengths[:, None]] = 0
        yield words, words * 7 % TAGS


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad.div_(dist.get_world_size())


def train_until(budget, model, optimizer, batches):
    """The tokens used, once they are no less than `budget`."""
    rank = dist.get_rank()
    used = torch.zeros(2, dtype=torch.int64)  # tokens, padding
    step = 0
    while used[0] < budget:
        words, tags = next(batches)
        loss = F.cross_entropy(model(words).flatten(0, 1), tags.flatten())
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        used += torch.tensor([(words > 0).sum(), (words == 0).sum()])
        step += 1
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f} tokens {used[0].item()}", flush=True)
    return used


def finish(used):
    """Rank 0 gets the sum for the accounting; its peers need not wait for it."""
    work = dist.reduce(used, dst=0, async_op=True)
    if dist.get_rank() == 0:
        work.wait()
        print(f"{used[0].item()} tokens, {used[1].item()} of padding", flush=True)
    dist.destroy_process_group()


def prefetched(batches, depth=4):
    """Makes batches in a thread, `depth` ahead."""
    ready = queue.Queue(maxsize=depth)

    def fill():
        for batch in batches:
            ready.put(batch)

    threading.Thread(target=fill, name="prefetch").start()
    while True:
        yield ready.get()


def build():
    torch.manual_seed(0)
    model = Tagger()
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("destroy", "finalize", "exit"), default="destroy")
    parser.add_argument("--tokens", type=int, default=12_000)
    args = parser.parse_args()
    if args.variant == "destroy":
        model, optimizer = build()
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo")
        model, optimizer = build()
    rank = dist.get_rank()
    batches = documents(rank, torch.Generator().manual_seed(rank))
    if args.variant == "exit":
        used = train_until(args.tokens, model, optimizer, prefetched(batches))
        if rank == 0:
            print(f"{used[0].item()} tokens", flush=True)
    else:
        finish(train_until(args.tokens, model, optimizer, batches))


if __name__ == "__main__":
    main()
