"""Pipeline of three stages, or replicas that exchange weights with one another.

torchrun --nproc-per-node 3 reproducer.py --variant skip
torchrun --nproc-per-node 2 reproducer.py --variant deadlock
torchrun --nproc-per-node 4 reproducer.py --variant gossip
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

VOCABULARY = 64
WIDTH = 128
LENGTH = 24
PAD = 0

# --- pipeline -----------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, hidden):
        return hidden + self.rnn(self.norm(hidden))[0]


class Stage:
    """One part of the model; `micro` batches go forward through all stages, then back."""

    def __init__(self, rank, size, micro, rows):
        self.rank, self.size = rank, size
        self.micro = micro
        self.shape = (rows, LENGTH, WIDTH)
        self.previous = rank - 1 if rank > 0 else None
        self.next = rank + 1 if rank < size - 1 else None
        self.embed = nn.Embedding(VOCABULARY, WIDTH, padding_idx=PAD)
        self.block = Block()
        self.head = nn.Linear(WIDTH, VOCABULARY)
        parameters = [*self.embed.parameters(), *self.block.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=1e-3)

    def receive_activation(self):
        hidden = torch.empty(self.shape)
        dist.recv(hidden, src=self.previous)
        return hidden.requires_grad_()

    def send_activation(self, hidden):
        dist.send(hidden.detach().contiguous(), dst=self.next)

    def receive_gradient(self):
        gradient = torch.empty(self.shape)
        dist.recv(gradient, src=self.next)
        return gradient

    def forward(self, tokens):
        """The (input, output) pairs of this step, oldest first; the output of the last stage is its loss."""
        pairs = []
        for part in tokens.split(self.shape[0]):
            inputs = self.receive_activation() if self.previous is not None else self.embed(part[:, :-1])
            if self.is_middle and (part == PAD).all():
                continue  # padding only, nothing to compute
            hidden = self.block(inputs)
            if self.next is not None:
                self.send_activation(hidden)
            else:
                hidden = F.cross_entropy(self.head(hidden).flatten(0, 1), part[:, 1:].flatten(), ignore_index=PAD)
            pairs.append((inputs, hidden))
        return pairs

    @property
    def is_middle(self):
        return self.previous is not None and self.next is not None

    def backward(self, pairs):
        for inputs, output in reversed(pairs):
            if self.next is not None:
                output.backward(self.receive_gradient())
            else:
                (output / self.micro).backward()
            if self.previous is not None:
                dist.send(inputs.grad.contiguous(), dst=self.previous)

    def step(self, tokens):
        self.optimizer.zero_grad()
        pairs = self.forward(tokens)
        self.backward(pairs)
        self.optimizer.step()
        return sum(output.item() for _, output in pairs) / len(pairs) if self.next is None else None


def sentences(seed=13):
    """Texts of different length, counting upwards or downwards; the short ones make the last rows of a batch."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        count = 8 if torch.rand(1, generator=generator) < 0.97 else 6
        rows = torch.zeros(8, LENGTH + 1, dtype=torch.long)
        for row in range(count):
            start, stride, length = torch.randint(1, 60, (3,), generator=generator).tolist()
            values = (start + (stride % 5 + 1) * torch.arange(LENGTH + 1)) % (VOCABULARY - 1) + 1
            rows[row, : 10 + length % (LENGTH - 9)] = values[: 10 + length % (LENGTH - 9)]
        yield rows


def train_pipeline(rank, size, steps=5000):
    torch.manual_seed(rank)
    stage = Stage(rank, size, micro=4, rows=2)
    for step, tokens in zip(range(steps), sentences()):
        loss = stage.step(tokens)
        if loss is not None:
            print(f"step {step} loss {loss:.4f}", flush=True)


# --- replicas that exchange their weights -------------------------------------------------------------


def make_net(seed=2):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


def local_steps(net, optimizer, count):
    """Mean loss over `count` steps without peers."""
    total = 0.0
    for _ in range(count):
        x = torch.randn(256, 20)
        loss = (net(x) - (x[:, :1] * x[:, 1:2] + x[:, 2:3])).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / count


def swap(mine, partner, give_first):
    """Give `mine` to the partner and return theirs."""
    theirs = torch.empty_like(mine)
    if give_first:
        dist.send(mine, dst=partner)
        dist.recv(theirs, src=partner)
    else:
        dist.recv(theirs, src=partner)
        dist.send(mine, dst=partner)
    return theirs


class Population:
    """Two replicas with different learning rates; now and then the worse one takes over the better one's weights."""

    def __init__(self, rank):
        self.rank = rank
        self.partner = 1 - rank
        self.net = make_net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=(0.08, 0.05)[rank])
        self.their_loss = 1.0 + self.partner

    def packed(self, loss):
        weights = nn.utils.parameters_to_vector(self.net.parameters()).detach()
        return torch.cat([weights, torch.tensor([loss])])

    def exchange(self, loss):
        worse = loss > self.their_loss if self.their_loss < 1 else self.rank == 1
        theirs = swap(self.packed(loss), self.partner, give_first=worse)
        self.their_loss = theirs[-1].item()
        if loss > self.their_loss:
            nn.utils.vector_to_parameters(theirs[:-1].clone(), self.net.parameters())

    def run(self, rounds):
        torch.manual_seed(self.rank)
        for done in range(rounds):
            loss = local_steps(self.net, self.optimizer, 60)
            if self.rank == 0:
                print(f"round {done} loss {loss:.4f}", flush=True)
            self.exchange(loss)


def train_gossip(rank, rounds):
    """Average with the neighbour at distance one; when those agree, with the one further away."""
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    torch.manual_seed(rank)
    for done in range(rounds):
        loss = local_steps(net, optimizer, 20)
        hop = 1 if done < 40 else 2
        mine = nn.utils.parameters_to_vector(net.parameters()).detach()
        theirs = swap(mine, rank ^ hop, give_first=rank % 2 == 0)
        nn.utils.vector_to_parameters((mine + theirs) / 2, net.parameters())
        if rank == 0:
            print(f"round {done} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("skip", "deadlock", "gossip"), default="skip")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if args.variant == "skip":
        train_pipeline(rank, world_size)
    elif args.variant == "deadlock":
        Population(rank).run(rounds=1000)
    else:
        train_gossip(rank, rounds=1000)
    dist.destroy_process_group()
