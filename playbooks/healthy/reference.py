"""A tiny GPT learns the forms of English verbs: two processes with DDP over gloo, then one, and what the second costs.

python reference.py [--out DIR] [--steps 100] [--master-port PORT]

DIR gets timings.jsonl, state-0.pt and state-1.pt, scaling.png and manifest.json. Both ranks must end with the same
weights. Exit code 0 when they do, 1 when not, 2 when the run could not be made.
"""

import argparse
import importlib.util
import itertools
import json
import os
import pathlib
import platform
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

SEED = 35_000
LAST = 50  # steps at the end that the figures are taken from: the start is warm-up
TOLERANCE = 1e-5  # between the states of the ranks
BATCH, CONTEXT = 8, 64  # sequences and characters in a step, for each process
PORT_TAKEN = "port {port} on this machine is taken: set MASTER_PORT (or --master-port) to a free one, or leave it unset"

# --- the corpus -----------------------------------------------------------------------------------------

VERBS = [
    ("walk", "walked", "walked"), ("see", "saw", "seen"), ("write", "wrote", "written"), ("keep", "kept", "kept"),
    ("take", "took", "taken"), ("sing", "sang", "sung"), ("open", "opened", "opened"), ("hold", "held", "held"),
    ("choose", "chose", "chosen"), ("cut", "cut", "cut"), ("know", "knew", "known"), ("ask", "asked", "asked"),
]  # fmt: skip
SUBJECTS = {"I": 1, "you": 2, "we": 2, "they": 2, "she": 3, "he": 3, "the teacher": 3, "my neighbours": 2}
OBJECTS = ["the letter", "a song", "the door", "an answer", "the garden", "two boxes", "the old bridge"]
TIMES = ["every day", "in the morning", "at noon", "again", "without a word"]


def third(verb):
    return verb + ("es" if verb.endswith(("s", "sh", "ch", "x", "o")) else "s")


def clause(subject, verb, form):
    """`subject` with `verb` in one of eight forms."""
    base, past, participle = verb
    person = SUBJECTS[subject]
    have, do = ("has", "does") if person == 3 else ("have", "do")
    return {
        "present": f"{subject} {third(base) if person == 3 else base}",
        "past": f"{subject} {past}",
        "perfect": f"{subject} {have} {participle}",
        "future": f"{subject} will {base}",
        "negative": f"{subject} {do} not {base}",
        "question": f"{do} {subject} {base}",
        "past perfect": f"{subject} had {participle}",
        "past negative": f"{subject} did not {base}",
    }[form]


def sentences():
    """Every sentence of the grammar once, in an order of their own that is always the same."""
    forms = "present past perfect future negative question".split() + ["past perfect", "past negative"]
    every = [
        f"{clause(subject, verb, form)} {thing} {when}{'?' if form == 'question' else '.'}\n"
        for subject, verb, form, thing, when in itertools.product(SUBJECTS, VERBS, forms, OBJECTS, TIMES)
    ]
    random.Random(SEED).shuffle(every)
    return every


# --- one rank -------------------------------------------------------------------------------------------


def make_model(letters, width=96, heads=4, layers=2):
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            b, t, _ = x.shape
            q, k, v = (part.view(b, t, heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(b, t, width))
            return x + self.mlp(self.norm2(x))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(CONTEXT, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)

        def forward(self, x):
            x = self.letters(x) + self.places(torch.arange(x.shape[1]))
            return self.head(self.norm(self.blocks(x)))

    return GPT()


def timed_all_reduce(spent):
    """DDP's own all-reduce of a bucket; `spent` gets the seconds of each."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    def hook(group, bucket):
        start = time.perf_counter()

        def done(future):
            spent.append(time.perf_counter() - start)
            return future.value()

        return allreduce_hook(group, bucket).then(done)

    return hook


def train(out, steps):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED + rank)
    every = sentences()
    letters = sorted(set("".join(every)))
    number = {letter: i for i, letter in enumerate(letters)}
    mine = "".join(sentence for index, sentence in enumerate(every) if index % world_size == rank)
    data = torch.tensor([number[letter] for letter in mine])
    model = DistributedDataParallel(make_model(len(letters)))
    spent = []
    model.register_comm_hook(None, timed_all_reduce(spent))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with open(out / f"timings-{world_size}-{rank}.jsonl", "w") as timings:
        for step in range(steps):
            start = time.perf_counter()
            spent.clear()
            at = torch.randint(len(data) - CONTEXT, (BATCH,))
            x = torch.stack([data[i : i + CONTEXT] for i in at])
            y = torch.stack([data[i + 1 : i + CONTEXT + 1] for i in at])
            loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            row = {"processes": world_size, "rank": rank, "step": step, "step_s": time.perf_counter() - start}
            timings.write(json.dumps({**row, "all_reduce_s": sum(spent), "loss": loss.item()}) + "\n")
            if rank == 0 and step % 10 == 9:
                print(
                    f"{world_size} process{'es' * (world_size > 1)}: step {step + 1} loss {loss.item():.4f}", flush=True
                )
    if world_size > 1:
        torch.save(model.module.state_dict(), out / f"state-{rank}.pt")
    dist.destroy_process_group()


# --- the launcher ---------------------------------------------------------------------------------------


class RunError(Exception):
    """The run could not be made; the message says what to do."""


def port_for(wanted):
    """The port asked for, or a free one; raises RunError where it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise RunError(PORT_TAKEN.format(port=wanted)) from error
        return probe.getsockname()[1]


def run(world_size, args):
    """Train with so many processes that share the cores."""
    job = {
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port_for(args.master_port)), "WORLD_SIZE": str(world_size)},
        "OMP_NUM_THREADS": str(max(len(os.sched_getaffinity(0)) // world_size, 1)),
    }
    command = [sys.executable, __file__, "--out", str(args.out), "--steps", str(args.steps)]
    ranks = []
    try:
        for rank in range(world_size):
            env = {**os.environ, **job, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            ranks.append(subprocess.Popen([*command, "--role", "rank"], env=env))
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks):
                break
            time.sleep(0.05)
        failed = [(number, rank.returncode) for number, rank in enumerate(ranks) if rank.poll()]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if failed:
        number, code = failed[0]
        raise RunError(f"rank {number} of {world_size} ended with exit code {code}; what it said stands above")


def figures(values):
    last = values[-LAST:]
    p95 = statistics.quantiles(last, n=20)[-1] if len(last) > 1 else last[0]
    return {"mean_s": statistics.mean(last), "median_s": statistics.median(last), "p95_s": p95}


def collect(out, world_sizes):
    """All timings in one file; the figures of the last steps by number of processes."""
    told = {}
    with open(out / "timings.jsonl", "w") as file:
        for world_size in world_sizes:
            rows = []
            for rank in range(world_size):
                part = out / f"timings-{world_size}-{rank}.jsonl"
                rows.append([json.loads(line) for line in part.read_text().splitlines()])
                file.write(part.read_text())
                part.unlink()
            # a step takes as long as its slowest rank
            steps = [max(row["step_s"] for row in step) for step in zip(*rows)]
            reduced = [statistics.mean(row["all_reduce_s"] for row in step) for step in zip(*rows)]
            one = {"step": figures(steps), "all_reduce": figures(reduced)}
            one["tokens_per_s"] = world_size * BATCH * CONTEXT / one["step"]["mean_s"]
            one["last_loss"] = statistics.mean(row[-1]["loss"] for row in rows)
            file.write(json.dumps({"summary": True, "processes": world_size, "of_last_steps": LAST, **one}) + "\n")
            told[world_size] = one
    return told


def largest_difference(out):
    import torch

    first, second = (torch.load(out / f"state-{rank}.pt", weights_only=True) for rank in range(2))
    return max((first[name].double() - second[name].double()).abs().max().item() for name in first)


def explained(told, cores):
    """Why the second process brings what it brings, in the figures of this run."""
    one, two = told[1], told[2]
    times = two["tokens_per_s"] / one["tokens_per_s"]
    step = two["step"]["mean_s"] / one["step"]["mean_s"]
    waits = two["all_reduce"]["mean_s"] / two["step"]["mean_s"]
    verdict = "slower" if times < 1 else "faster, but far from twice as fast" if times < 1.7 else "nearly twice as fast"
    reduced = two["all_reduce"]["mean_s"] * 1000
    return (
        f"Two processes are {verdict} here: {two['tokens_per_s']:.0f} tokens/s against {one['tokens_per_s']:.0f} "
        f"({times:.2f} times), for a step takes {step:.2f} times as long. Both runs have the same {cores} cores: the "
        "second process brings no computer of its own, it takes its share of the cores, caches and memory channels "
        "from the first. What it adds is work: every step ends in an all-reduce of all gradients through the sockets "
        f"of the loopback interface, which takes {reduced:.1f} ms ({waits:.0%} of the step) for a model so small that "
        "there is little computing to hide it behind, and in which the faster rank waits for the slower one. A second "
        "host with cores of its own, or more computing for each message, turns the balance."
    )


def draw(told, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 3.5), layout="constrained")
    bars = axes.bar(
        ["one process", "two processes"],
        [told[1]["tokens_per_s"], told[2]["tokens_per_s"]],
        color=["#4c72b0", "#dd8452"],
    )
    axes.bar_label(bars, fmt="{:,.0f}")
    axes.axhline(2 * told[1]["tokens_per_s"], color="grey", linestyle="--", label="twice one process")
    axes.set_ylabel("tokens/s, mean of the last steps")
    axes.set_title("Tiny GPT, DDP over gloo, one host")
    axes.legend()
    figure.savefig(path, dpi=120)


def reference(args):
    args.out.mkdir(parents=True, exist_ok=True)
    port_for(args.master_port)  # better said before the first run than before the second
    for world_size in (2, 1):
        run(world_size, args)
    told = collect(args.out, (1, 2))
    difference = largest_difference(args.out)
    cores = len(os.sched_getaffinity(0))
    manifest = {
        "steps": args.steps, "seed": "35000 + rank", "shards": "index % world_size", "batch": BATCH, "context": CONTEXT,
        "host": {"cores": cores, "machine": platform.machine(), "python": platform.python_version()},
        "processes": {str(number): one for number, one in told.items()},
        "largest_difference_between_states": difference, "states_equal": difference <= TOLERANCE,
        "why": explained(told, cores),
    }  # fmt: skip
    (args.out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    if importlib.util.find_spec("matplotlib"):
        draw(told, args.out / "scaling.png")
    else:
        print("no scaling.png: matplotlib is missing (pip install matplotlib)", file=sys.stderr)
    for number, one in told.items():
        step = " ".join(f"{name[:-2]} {seconds * 1000:.1f}" for name, seconds in one["step"].items())
        reduced = one["all_reduce"]["mean_s"] * 1000
        processes = f"{number} process{'es' * (number > 1)}"
        print(f"{processes}: {one['tokens_per_s']:.0f} tokens/s, step {step} ms, all-reduce mean {reduced:.1f} ms")
    print(f"largest difference between the ranks' states: {difference:.3g} (at most {TOLERANCE:g})")
    print(manifest["why"])
    print(f"all of it lies in {args.out}", flush=True)
    return 0 if difference <= TOLERANCE else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, help="folder for the results (default: a new temporary one)")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument(
        "--master-port", type=int, default=int(os.environ.get("MASTER_PORT", 0)), help="default: a free one"
    )
    parser.add_argument("--role", choices=("launcher", "rank"), default="launcher", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role == "rank":
        train(args.out, args.steps)
        return 0
    args.out = args.out or pathlib.Path(tempfile.mkdtemp(prefix="reference-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return reference(args)
    except RunError as error:
        print(f"reference: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
