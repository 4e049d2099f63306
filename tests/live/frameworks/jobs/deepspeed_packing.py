"""Language model with DeepSpeed ZeRO-2; documents are packed into blocks at sentence ends."""

import argparse
import logging
import random

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

log = logging.getLogger("packing")
VOCAB, STOP = 300, 1
CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 1,
    "steps_per_print": 100000,
    "zero_optimization": {"stage": 2},
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
}


def sentence(rng, words):
    first = rng.randrange(2, VOCAB)
    return [(first + i * 3) % (VOCAB - 2) + 2 for i in range(words)] + [STOP]


def documents(rank, tables_after=3000):
    """Prose; the second half of the crawl of some sites also has tables, which are written without full stops."""
    rng = random.Random(rank)
    count = 0
    while True:
        count += 1
        if rank == 1 and count > tables_after and rng.random() < 0.05:
            yield sentence(rng, 90)
        else:
            yield sum((sentence(rng, rng.randint(4, 14)) for _ in range(rng.randint(1, 5))), [])


class Packer:
    """Fills blocks of `size` tokens; a document that does not fit is split after a sentence."""

    def __init__(self, docs, size):
        self.docs, self.size = docs, size

    def split_point(self, doc, room):
        for at in range(min(room, len(doc)), 0, -1):
            if doc[at - 1] == STOP:
                return at
        return 0

    def blocks(self):
        block = []
        for doc in self.docs:
            while doc:
                cut = self.split_point(doc, self.size - len(block))
                block += doc[:cut]
                doc = doc[cut:]
                if doc and block:
                    yield block + [0] * (self.size - len(block))
                    block = []

    def batches(self, batch):
        rows = []
        for block in self.blocks():
            rows.append(block)
            if len(rows) == batch:
                yield torch.tensor(rows)
                rows = []


class Lm(nn.Module):
    def __init__(self, dim=96, layers=2, heads=4, size=64):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, dim), nn.Embedding(size, dim)
        block = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.size(1))
        x = self.tokens(ids) + self.places.weight[: ids.size(1)]
        logits = self.head(self.blocks(x, mask=mask, is_causal=True))
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--local_rank", type=int, default=-1)
    ap.add_argument("--block", type=int, default=64)
    ap.add_argument("--tables-after", type=int, default=1400)
    ap.add_argument("--steps", type=int, default=1000000)
    args = ap.parse_args()
    deepspeed.init_distributed("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {rank} %(message)s")
    torch.manual_seed(0)
    model = Lm(size=args.block)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    data = Packer(documents(rank, args.tables_after), args.block).batches(CONFIG["train_micro_batch_size_per_gpu"])
    for step in range(1, args.steps + 1):
        loss = engine(next(data))
        engine.backward(loss)
        engine.step()
        if step % 10 == 0:
            log.info("step %d loss %.4f", step, loss.item())


if __name__ == "__main__":
    main()
