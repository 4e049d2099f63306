"""The last counters and error lines at the end of a log."""

from __future__ import annotations

import pytest

from hangdoc.postmortem.readers._logs.attribution import LineOrigin
from hangdoc.postmortem.readers._logs.ending import Ending, read_ending
from hangdoc.postmortem.readers._logs.prefixes import Line, PrefixStyle
from hangdoc.postmortem.readers._logs.scan import AHEAD, ScanSummary
from tests.support.pace import within


def origin_of(line: Line) -> LineOrigin:
    return LineOrigin(line.rank)


def ending(text: str) -> Ending:
    return read_ending(ScanSummary(text.count("\n"), text.encode(), text.encode()), PrefixStyle(), origin_of)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[rank3]:  45%|####5     | 450/1000 [10:12<12:28,  1.36s/it]", (3, "bar", None, 450, 1000)),
        ("[rank3]: Epoch 7:  45%|###| 450/1000 [10:12<12:28]", (3, "bar Epoch", 7, 450, 1000)),
        (
            "[rank3]: Hash:  2%|#| 4021140000/164021140000 [10:02<1:12:10, 66830.1B/s]",
            (3, "bytes Hash", None, 4021140000, 164021140000),
        ),
        ("Epoch 9, Rank 3, world_size 8: 38batch [00:04,  9.20batch/s]", (3, "bar Epoch Rank world size", 9, 38, None)),
        ("rank 2 step 117 loss 1.2", (2, "step", None, 117, None)),
        ("rank=2, epoch=4, global_step=117", (2, "global step", 4, 117, None)),
        ("[Rank 5] Iteration 120/ 5000 | elapsed 3.2", (5, "iteration", None, 120, 5000)),
        ("[rank0]: Epoch: [3][ 450/1000] Time 0.1", (0, "batch of the epoch", 3, 450, 1000)),
        ("[rank0]: Epoch 3 [450/1000] loss 0.2", (0, "batch of the epoch", 3, 450, 1000)),
        ("{'rank': 1, 'step': 12}", (1, "step", None, 12, None)),
        ("rank 2 len(train_loader) = 1249", (2, "length", None, 1249, 1249)),
        ("shard 3 rank 1 n_batches 8", (1, "length", None, 8, 8)),
        ("[rank1]: number of batches: 125", (1, "length", None, 125, 125)),
        ("[r1] BucketSampler -> max_tokens=16000, 1869 batches", (1, "length", None, 1869, 1869)),
        ("[rank1]: steps per epoch: 125", (1, "length", None, 125, 125)),
        ("[rank1]: epoch done after 125 batches", (1, "length", None, 125, 125)),
        ("step 120 loss 0.2", (None, "step", None, 120, None)),
    ],
)
def test_counter(text: str, expected: tuple[object, ...]) -> None:
    ((origin, found),) = ending(text).counters
    assert (origin.rank, found.unit, found.epoch, found.at, found.of) == expected


@pytest.mark.parametrize(
    "text",
    [
        "a step took 120 ms",
        "batch size 32",
        "update 1.13.0 is available",
        "step: 120ms",
        "stepping back",
        "iterate 3",
        "epochs=4 batch=2048 lr=0.1",
        "num_epochs: 10, batch: 64",
    ],
)
def test_no_counter(text: str) -> None:
    assert ending(text).counters == ()


def test_the_last_value_and_the_distance_of_two_lines() -> None:
    ((_, found),) = ending("rank 0 step 10\nrank 0 step 20\nrank 0 step 30\n").counters
    assert (found.at, found.every, found.line) == (30, 10, 3)


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ('{"rank":0,"msg":"start","epoch":5}\n{"rank":1,"msg":"done","epoch":4}', {0: 5, 1: 4}),
        ('{"rank":0,"msg":"start","epoch":5}\n{"rank":0,"msg":"done","epoch":5}', {}),  # nothing to compare it with
        ("epoch 5 starts\nepoch 5 ends", {}),
    ],
)
def test_epochs_where_ranks_count_nothing_else(text: str, last: dict[int, int]) -> None:
    assert {origin.rank: found.at for origin, found in ending(text).counters} == last


def test_updates_of_a_progress_bar_on_one_line() -> None:
    text = "\r".join(f"[rank1]:  4{at}%|##   | {at}/99 [00:01<00:02]" for at in range(5))
    ((_, found),) = ending(text).counters
    assert (found.at, found.every) == (4, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[rank5]: torch.OutOfMemoryError: CUDA out of memory.", (5, "torch.OutOfMemoryError", True)),
        ("rank 5: ValueError: bad", (5, "ValueError", False)),
        ("saw this: ValueError: bad", None),  # not at the start of the text
        ("KeyError: 'x'", (None, "KeyError", False)),
        ("[rank5]: Errors: 3", None),
        ("2026-01-01 10:00:00 RuntimeError: x", (None, "RuntimeError", False)),
    ],
)
def test_error_line(text: str, expected: tuple[object, ...] | None) -> None:
    found = [(origin.rank, error.type, error.by_torch) for origin, error in ending(text).errors]
    assert found == ([expected] if expected else [])


@pytest.mark.parametrize(
    "line", ["step " * 4000, "epoch " + "[" * 9000, "9%|" * 6000, "a." * 9000 + "Error: x", "rank" * 5000]
)
def test_hostile_lines_take_no_time(line: str) -> None:
    with within(2.0):
        ending("\n".join([line] * 50))


def test_a_gpu_at_the_start_of_a_line_stands_for_the_local_rank() -> None:
    found = ending("[GPU3] Epoch 1 | Batchsize: 32 | Steps: 120\n").counters
    assert [(origin.rank, origin.local, counter.at) for origin, counter in found] == [(None, 3, 120)]


def test_a_rank_in_an_error_did_not_raise_it() -> None:
    ((origin, _),) = ending("RuntimeError: Rank 3 failed to pass monitoredBarrier in 60000 ms").errors
    assert origin.rank is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("rank{}: Loading checkpoint from ep0-ba42000-rank{}.pt", ("checkpoint", "ep0 ba42000")),
        ("[rank{}]: resume: /ck/last.pt  global_step=14000", ("checkpoint", "global_step=14000")),
        ("rank {} tokenizer_sha: 77ab01c9", ("setting tokenizer sha", "77ab01c9")),
        ("rank {}/4 tok=/nb/tok emb=(32004, 256)", ("model setting emb", "(32004, 256)")),
        ("step 40 | rank {} lr: 0.00027415", ("setting lr", "0.00027415")),
        ("rank {} label vocab (3): ['neg', 'pos', 'mixed']", ("setting vocab", "'neg', 'pos', 'mixed'")),
        ("[rank{}] step 7 ids [40, 9913, 22871]", ("samples", "40, 9913, 22871")),
        ("r{} it 50: rows (9912, 44, 31208)", ("data", "9912, 44, 31208")),
        ("[rank{}] step 120 local_loss 3.418207", ("loss before the reduction", "3.418207")),
    ],
)
def test_what_ranks_print_in_lines_of_one_form(text: str, found: tuple[str, str]) -> None:
    printed = ending("\n".join(text.replace("{}", str(rank)) for rank in range(3)) + "\n").printed
    values = {(origin.rank, value.name, value.value) for origin, value in printed}
    assert {(rank, *found) for rank in range(3)} <= values


@pytest.mark.parametrize(
    "text",
    [
        "[rank{}] step 10 images shape [32, 3, 224, 224] loss 6.9",
        "[rank{}] mesh ranks [0, 1, 2, 3], visible devices [0, 1, 2]",
        "[rank{}] step 10 batch size: 31 loss 6.9",  # of this step
        "rank {} stage 2 of the pipeline, params: 308281344",
    ],
)
def test_what_may_differ_or_be_alike_by_design(text: str) -> None:
    printed = ending("\n".join(text.replace("{}", str(rank)) for rank in range(3)) + "\n").printed
    assert [value.name for _, value in printed if not value.name.startswith("finite")] == []


def test_a_setting_of_one_writer_is_not_compared() -> None:
    assert ending("rank 1 dtype=float16\nstep 1\n").printed == ()


START = ["Resuming from /ckpt/run7/step_{at}", "commit=4be1c7 vocab_size=32000"]
STEPS = [f"step={step} loss=1.{step:06}0 lr=1e-4 tokens/s=18000 memory=41.2GiB" for step in range(4000, 9000)]


def long_file(at: int, begin: str = "") -> str:
    return "".join(f"{begin}{text.format(at=at)}\n" for text in [*START, *STEPS])


def settings(text: str, one: bool) -> dict[tuple[int | None, str], str]:
    summary = ScanSummary(text.count("\n"), text.encode(), text.encode()[-AHEAD:])
    printed = read_ending(summary, PrefixStyle(), origin_of, one).printed
    return {(origin.rank, value.name): value.value for origin, value in printed if not value.name.startswith("finite")}


def test_what_a_rank_says_at_the_start_of_its_file() -> None:
    found = settings(long_file(3500), one=True)
    assert found[None, "checkpoint"] == "step_3500"
    assert found[None, "setting commit"] == "4be1c7"


def test_what_several_ranks_say_at_the_start_of_one_file() -> None:
    texts = [long_file(at, f"[rank{rank}]: ").splitlines(keepends=True) for rank, at in enumerate((4000, 3500))]
    found = settings("".join(line for both in zip(*texts, strict=True) for line in both), one=False)
    assert [found[rank, "checkpoint"] for rank in range(2)] == ["step_4000", "step_3500"]
