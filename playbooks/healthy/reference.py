"""The reference job: a tiny GPT learns English verb grammar, alone and then on two processes with DDP over gloo.

python reference.py [--out DIR]

Writes to DIR: timings.jsonl (each step), state-rank0.pt and state-rank1.pt, scaling.png, manifest.json.
"""

import argparse
import errno
import itertools
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SEED = 35000
STEPS = 100
LAST = 50  # the statistics are of the last steps, when everything is warm
BATCH = 8
CONTEXT = 12
TOLERANCE = 1e-5

VERBS = {  # base: third person, past, participle, -ing
    "walk": ("walks", "walked", "walked", "walking"),
    "write": ("writes", "wrote", "written", "writing"),
    "sing": ("sings", "sang", "sung", "singing"),
    "carry": ("carries", "carried", "carried", "carrying"),
    "take": ("takes", "took", "taken", "taking"),
    "go": ("goes", "went", "gone", "going"),
    "stop": ("stops", "stopped", "stopped", "stopping"),
    "see": ("sees", "saw", "seen", "seeing"),
}
SUBJECTS = {"I": "am", "you": "are", "she": "is", "the baker": "is", "we": "are", "they": "are", "my friends": "are"}
TIMES = {"every day": "present", "yesterday": "past", "now": "progressive", "already": "perfect", "tomorrow": "future"}


# --- the corpus -----------------------------------------------------------------------------------------


def conjugated(subject, verb, tense):
    third, past, participle, ing = VERBS[verb]
    be = SUBJECTS[subject]
    return {
        "present": third if be == "is" else verb,
        "past": past,
        "progressive": f"{be} {ing}",
        "perfect": f"{'has' if be == 'is' else 'have'} {participle}",
        "future": f"will {verb}",
    }[tense]


def sentences():
    """Every subject, verb and tense: affirmed, denied in the future, and told by somebody."""
    found = []
    for subject, verb, (when, tense) in itertools.product(SUBJECTS, VERBS, TIMES.items()):
        core = f"{subject} {conjugated(subject, verb, tense)}"
        found += [f"{core} {when} .", f"{when} {core} .", f"he says that {core} {when} ."]
        found.append(f"{subject} will not {verb} {when} ." if tense == "future" else f"{core} again {when} .")
    return found


class Corpus:
    """Sentences as padded rows of token numbers; each rank has those whose index % world_size is its rank."""

    def __init__(self, rank, world_size):
        everything = sentences()
        words = sorted({word for sentence in everything for word in sentence.split()})
        self.number = {word: i for i, word in enumerate(["<pad>", *words])}
        mine = [sentence for index, sentence in enumerate(everything) if index % world_size == rank]
        rows = [[self.number[word] for word in sentence.split()][: CONTEXT + 1] for sentence in mine]
        self.rows = torch.tensor([row + [0] * (CONTEXT + 1 - len(row)) for row in rows])

    def batch(self, generator):
        chosen = self.rows[torch.randint(len(self.rows), (BATCH,), generator=generator)]
        return chosen[:, :-1], chosen[:, 1:]


# --- the model ------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        rows, length, width = x.shape
        split = self.qkv(self.before_attention(x)).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    def __init__(self, words, width=192, heads=4, layers=4):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


# --- one rank -------------------------------------------------------------------------------------------


class AllReduceClock:
    """A communication hook for DDP: averages each bucket and notes from when to when all-reduces ran."""

    def __init__(self):
        self.begun = self.ended = None

    def hook(self, _, bucket):
        self.begun = self.begun or time.perf_counter()
        tensor = bucket.buffer().div_(dist.get_world_size())
        return dist.all_reduce(tensor, async_op=True).get_future().then(self.done)

    def done(self, future):
        self.ended = time.perf_counter()
        return future.value()[0]

    def take(self):
        """Seconds from the first bucket's start to the last one's end, waiting for the other rank included."""
        span = self.ended - self.begun
        self.begun = self.ended = None
        return span


def train(out):
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED + rank)
    generator = torch.Generator().manual_seed(SEED + rank)
    corpus = Corpus(rank, world_size)
    model = DistributedDataParallel(GPT(len(corpus.number)))
    clock = AllReduceClock()
    model.register_comm_hook(None, clock.hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    timings = []
    for step in range(STEPS):
        begun = time.perf_counter()
        tokens, wanted = corpus.batch(generator)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), wanted.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        all_reduce = clock.take()
        optimizer.step()
        took = time.perf_counter() - begun
        timings.append({"processes": world_size, "rank": rank, "step": step, "loss": round(loss.item(), 5)})
        timings[-1].update(step_s=round(took, 6), all_reduce_s=round(all_reduce, 6))
        if rank == 0 and (step + 1) % 10 == 0:
            print(f"{world_size} process{'es' * (world_size > 1)}, step {step + 1}: loss {loss.item():.4f}", flush=True)
    if world_size > 1:
        torch.save(model.module.state_dict(), out / f"state-rank{rank}.pt")
    (out / f"part-{world_size}-{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in timings))
    dist.barrier()
    dist.destroy_process_group()


# --- the launcher ---------------------------------------------------------------------------------------


def port():
    """MASTER_PORT where it is set, else a free one."""
    wanted = os.environ.get("MASTER_PORT", "0")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", int(wanted)))
        except (OSError, OverflowError, ValueError) as error:
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            wrong = "is taken by another process" if taken else f"cannot be used ({error})"
            sys.exit(f"MASTER_PORT {wanted} {wrong}: set it to a free port, or unset it and one is found.")
        return str(probe.getsockname()[1])


def launch(world_size, out):
    """Run the ranks to their end; the first that fails ends the others, and this."""
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port(), "WORLD_SIZE": str(world_size)}
    common["OMP_NUM_THREADS"] = "1"  # the same for one process and for two
    command = [sys.executable, __file__, "--out", str(out)]
    ranks = [
        subprocess.Popen(command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(world_size)
    ]
    try:
        while any(process.poll() is None for process in ranks):
            if any(process.poll() for process in ranks):
                break
            time.sleep(0.05)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    for rank, process in enumerate(ranks):
        if process.returncode:
            sys.exit(f"rank {rank} of {world_size} ended with {process.returncode}: its traceback is above.")


def gather(out):
    """All timings, in one file."""
    parts = sorted(out.glob("part-*.jsonl"))
    text = "".join(part.read_text() for part in parts)
    (out / "timings.jsonl").write_text(text)
    for part in parts:
        part.unlink()
    return [json.loads(line) for line in text.splitlines()]


def summary(seconds):
    """Milliseconds."""
    values = sorted(1000 * value for value in seconds)
    p95 = values[min(len(values) - 1, int(0.95 * len(values)))]
    return {
        "mean_ms": round(statistics.mean(values), 3),
        "median_ms": round(statistics.median(values), 3),
        "p95_ms": round(p95, 3),
    }


def figures(timings, world_size):
    rows = [row for row in timings if row["processes"] == world_size]
    warm = [row for row in rows if row["step"] >= STEPS - LAST]
    # a step of the job takes as long as its slowest rank
    slowest = [max(row["step_s"] for row in warm if row["step"] == step) for step in {row["step"] for row in warm}]
    return {
        "processes": world_size,
        "step": summary(slowest),
        "all_reduce": summary(row["all_reduce_s"] for row in warm),
        "tokens_per_s": round(world_size * BATCH * CONTEXT * len(slowest) / sum(slowest), 1),
        "last_loss": statistics.mean(row["loss"] for row in rows if row["step"] == STEPS - 1),
    }


def largest_difference(out):
    a, b = (torch.load(out / f"state-rank{rank}.pt", weights_only=True) for rank in (0, 1))
    return max((a[name] - b[name]).abs().max().item() for name in a)


def explanation(one, two, parameters, cores):
    speedup = two["tokens_per_s"] / one["tokens_per_s"]
    longer = two["step"]["median_ms"] - one["step"]["median_ms"]
    message = 4 * parameters / 2**20
    verdict = (
        f"Two processes are slower here: {speedup:.2f} times the tokens per second of one."
        if speedup < 1
        else f"Two processes reach {speedup:.2f} times the tokens per second of one, not twice as many."
    )
    return (
        f"{verdict} A step takes {longer:+.1f} ms (median) against one process."
        f" A rank has only {BATCH * CONTEXT} tokens to compute a step, and then {message:.1f} MiB of gradients go"
        f" through the loopback interface, where the same {cores} cores copy and add them that should compute:"
        f" {two['all_reduce']['median_ms']:.1f} ms from the first"
        " bucket's start to the last one's end, the wait for the slower rank included. There is no second machine, so"
        " two processes add communication but no memory bandwidth, and anything else that runs on these cores delays"
        " one rank and so both. More tokens a step, gradients accumulated over several, or real cores of its own for"
        " each process turn this round."
    )


def plot(one, two, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 4), layout="constrained")
    rates = [one["tokens_per_s"], two["tokens_per_s"]]
    axes.bar(["1 process", "2 processes"], rates, width=0.5, color=["tab:gray", "tab:blue"])
    axes.plot([-0.25, 1.25], [2 * rates[0]] * 2, "--", color="black", linewidth=1, label="twice one process")
    for place, rate in enumerate(rates):
        axes.annotate(f"{rate:,.0f}", (place, rate), ha="center", va="bottom")
    axes.set_ylabel("tokens/s")
    axes.set_title(f"tiny GPT, DDP over gloo, mean of the last {LAST} steps", fontsize=10)
    axes.set_ylim(0, 1.3 * max(*rates, 2 * rates[0]))
    axes.legend(loc="upper left")
    figure.savefig(path, dpi=120)


def run(out):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    out.mkdir(parents=True, exist_ok=True)
    for world_size in (1, 2):
        launch(world_size, out)
    timings = gather(out)
    one, two = figures(timings, 1), figures(timings, 2)
    difference = largest_difference(out)
    equal = difference <= TOLERANCE
    parameters = sum(value.numel() for value in torch.load(out / "state-rank0.pt", weights_only=True).values())
    manifest = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "steps": STEPS,
        "statistics_of_last": LAST,
        "seeds": [SEED, SEED + 1],
        "parameters": parameters,
        "one": one,
        "two": two,
        "speedup": round(two["tokens_per_s"] / one["tokens_per_s"], 3),
        "largest_state_difference": difference,
        "states_equal": equal,
        "why": explanation(one, two, parameters, len(os.sched_getaffinity(0))),
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    print(f"largest difference between the ranks' states: {difference:g} (allowed {TOLERANCE:g})")
    for one_or_two in (one, two):
        told = ", ".join(f"{name} {value}" for name, value in one_or_two["step"].items())
        print(f"{one_or_two['processes']} process(es): {one_or_two['tokens_per_s']:.0f} tokens/s; step {told}")
    print(manifest["why"])
    try:
        plot(one, two, out / "scaling.png")
    except ImportError:
        print("scaling.png is not drawn, matplotlib is missing: pip install matplotlib", file=sys.stderr)
    print(f"written to {out}")
    return 0 if equal else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "hangdoc-reference", metavar="DIR")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        train(arguments.out)
    else:
        sys.exit(run(arguments.out))
