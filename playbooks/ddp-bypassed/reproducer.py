"""Train an autoencoder of spectra, and a small language model, with DistributedDataParallel over gloo.

torchrun --nproc-per-node 2 reproducer.py [--variant loss|forward|logged]
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class SpectrumAutoencoder(nn.Module):
    def __init__(self, bins=320, code=24, width=512):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(bins, width), nn.GELU(), nn.Linear(width, 2 * code))
        self.decoder = nn.Sequential(nn.Linear(code, width), nn.GELU(), nn.Linear(width, bins))

    def forward(self, spectra):
        mean, logvar = self.encoder(spectra).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        return self.decoder(code), mean, logvar

    def compute_loss(self, spectra, beta=0.01):
        rebuilt, mean, logvar = self(spectra)
        kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum(1).mean()
        return F.mse_loss(rebuilt, spectra) + beta * kl


def make_spectra(rank, size=3000, bins=320):
    generator = torch.Generator().manual_seed(rank)
    centres = torch.rand(size, 3, 1, generator=generator) * bins
    widths = 2 + 8 * torch.rand(size, 3, 1, generator=generator)
    axis = torch.arange(bins, dtype=torch.float32)
    return torch.exp(-(((axis - centres) / widths) ** 2)).sum(1)


class Trainer:
    def __init__(self, rank, log_every=0):
        self.rank = rank
        self.log_every = log_every
        self.spectra = make_spectra(rank)
        self.model = DistributedDataParallel(SpectrumAutoencoder())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.step = 0

    def train_step(self, batch):
        loss = self.model.module.compute_loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def log(self, loss):
        if self.log_every and self.step % self.log_every == 0:
            dist.all_reduce(loss, op=dist.ReduceOp.SUM)
            loss /= dist.get_world_size()
        if self.rank == 0 and self.step % 20 == 0:
            print(f"step {self.step} loss {loss.item():.5f}", flush=True)

    def fit(self, epochs, batch_size=48):
        for _ in range(epochs):
            for index in torch.randperm(len(self.spectra)).split(batch_size):
                self.log(self.train_step(self.spectra[index]))
                self.step += 1


# --- plain functions, a recurrent model of letters ------------------------------------------------------

TEXT = "the ships went out at dawn and the gulls went with them; at dusk they came back, and the gulls did not. " * 200


class LetterModel(nn.Module):
    def __init__(self, letters, width=160):
        super().__init__()
        self.embed = nn.Embedding(letters, 32)
        self.rnn = nn.GRU(32, width, batch_first=True)
        self.out = nn.Linear(width, letters)

    def forward(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[0])


def unwrap(model):
    return model.module if isinstance(model, DistributedDataParallel) else model


def train_letters(rank, steps):
    alphabet = {letter: number for number, letter in enumerate(sorted(set(TEXT)))}
    tokens = torch.tensor([alphabet[letter] for letter in TEXT])
    ddp_model = DistributedDataParallel(LetterModel(len(alphabet)))
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.3)
    model = unwrap(ddp_model)  # for generate() below
    for it in range(steps):
        starts = torch.randint(len(tokens) - 41, (32,))
        window = tokens[starts[:, None] + torch.arange(41)]
        logits = model(window[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and it % 20 == 0:
            print(f"it {it} loss {loss.item():.4f}", flush=True)
        if rank == 0 and it % 2000 == 0:
            print("sample:", generate(model, list(alphabet), 40), flush=True)
    dist.barrier()
    return ddp_model


@torch.no_grad()
def generate(model, letters, length):
    tokens = torch.zeros(1, 1, dtype=torch.long)
    for _ in range(length):
        tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], dim=1)
    return "".join(letters[token] for token in tokens[0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("loss", "forward", "logged"), default="loss")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    if args.variant == "forward":
        train_letters(rank, steps=100_000)
    else:
        Trainer(rank, log_every=50 if args.variant == "logged" else 0).fit(epochs=2000)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
