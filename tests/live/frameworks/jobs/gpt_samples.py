"""Small GPT with accelerate: gradient accumulation, EMA weights, samples written by the main process."""

import argparse
import copy
import logging
import math
import os
import time

import torch
from accelerate import Accelerator
from accelerate.logging import get_logger
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

logger = get_logger(__name__)


class Progressions(Dataset):
    def __init__(self, n=4096, length=64, vocab=128):
        g = torch.Generator().manual_seed(3)
        start = torch.randint(0, vocab, (n, 1), generator=g)
        stride = torch.randint(1, 9, (n, 1), generator=g)
        self.ids = (start + stride * torch.arange(length)) % vocab

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


class Ema:
    def __init__(self, model, decay=0.98):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.model.parameters(), model.parameters()):
            e.lerp_(p, 1 - self.decay)


@torch.no_grad()
def write_samples(model, path, count, length=56):
    began = time.time()
    right = total = 0
    with open(path, "a") as out:
        for i in range(count):
            stride = 1 + i % 8
            prompt = (torch.arange(6) * stride + i).remainder(128)[None]
            ids = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=length,
                do_sample=True,
                top_k=5,
                pad_token_id=0,
            )
            steps = ids[0].diff().remainder(128)
            right += (steps == stride).sum().item()
            total += steps.numel()
            out.write(" ".join(map(str, ids[0].tolist())) + "\n")
    return right / total, time.time() - began


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=1000)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--accumulate", type=int, default=4)
    ap.add_argument("--sample-every", type=int, default=15)
    ap.add_argument("--samples", type=int, default=60)
    ap.add_argument("--out", default="runs/gpt_samples")
    args = ap.parse_args()

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    set_seed(11)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=64, n_embd=96, n_layer=3, n_head=4))
    ema = Ema(model) if accelerator.is_main_process else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(Progressions(), batch_size=args.batch, shuffle=True, drop_last=True)
    schedule = get_cosine_schedule_with_warmup(optimizer, 20, 100000)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    os.makedirs(args.out, exist_ok=True)

    updates = 0
    for epoch in range(args.epochs):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            updates += 1
            if ema is not None:
                ema.update(accelerator.unwrap_model(model))
            if updates % 5 == 0:
                mean = accelerator.reduce(loss.detach(), "mean").item()
                logger.info("epoch %d update %d loss %.4f ppl %.2f", epoch, updates, mean, math.exp(min(mean, 20)))
            if updates % args.sample_every == 0:
                if accelerator.is_main_process:
                    score, took = write_samples(ema.model, f"{args.out}/samples.txt", args.samples)
                    logger.info("samples at update %d: %.3f of the steps right, %.1f s", updates, score, took)
                    accelerator.save(ema.model.state_dict(), f"{args.out}/ema.pt")
                accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
