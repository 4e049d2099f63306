"""Continued pre-training with the HF Trainer; evaluates when the loss behaves oddly."""

import argparse
import logging
import os

import torch
from torch.utils.data import Dataset, SequentialSampler
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

log = logging.getLogger("pretrain")


class PackedCorpus(Dataset):
    """Blocks of a packed corpus in the order of the curriculum; a few documents are scans with poor OCR."""

    def __init__(self, blocks, length=48, vocab=256, seed=0, scans=()):
        g = torch.Generator().manual_seed(seed)
        first = torch.randint(0, vocab, (blocks, 1), generator=g)
        stride = torch.randint(1, 5, (blocks, 1), generator=g)
        self.ids = (first + stride * torch.arange(length)) % vocab
        for start, stop in scans:
            self.ids[start:stop] = torch.randint(0, vocab, (stop - start, length), generator=g)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


class SpikeTracker:
    def __init__(self, factor=1.6, warmup=30):
        self.factor, self.warmup = factor, warmup
        self.mean, self.seen, self.last = None, 0, None

    def update(self, loss):
        self.last = loss
        self.seen += 1
        self.mean = loss if self.mean is None else 0.9 * self.mean + 0.1 * loss

    @property
    def spiked(self):
        return self.seen > self.warmup and self.last > self.factor * self.mean


class CurriculumTrainer(Trainer):
    def __init__(self, *args, tracker=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.tracker = tracker

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.tracker.update(loss.item())
        return loss


class EvaluateOnSpike(TrainerCallback):
    def __init__(self, tracker):
        self.tracker = tracker

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % 10 == 0:
            log.info("step %d loss %.4f", state.global_step, self.tracker.last)
        if self.tracker.spiked:
            log.info(
                "step %d: loss %.3f, mean %.3f, checking the validation set",
                state.global_step,
                self.tracker.last,
                self.tracker.mean,
            )
            control.should_evaluate = True
        return control

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        log.info("step %d validation loss %.4f", state.global_step, metrics["eval_loss"])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--blocks", type=int, default=200000)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--scans-at", type=int, default=141)
    ap.add_argument("--out", default="runs/spikes")
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {os.environ.get('RANK', 0)} %(message)s")
    set_seed(0)
    scans = [(args.scans_at * args.batch, (args.scans_at + 1) * args.batch)]
    train = PackedCorpus(args.blocks, scans=scans)
    valid = PackedCorpus(256, seed=1)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=256,
            n_positions=48,
            n_embd=96,
            n_layer=3,
            n_head=4,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )
    tracker = SpikeTracker()
    trainer = CurriculumTrainer(
        model=model,
        train_dataset=train,
        eval_dataset=valid,
        tracker=tracker,
        callbacks=[EvaluateOnSpike(tracker)],
        args=TrainingArguments(
            output_dir=args.out,
            per_device_train_batch_size=args.batch,
            use_cpu=True,
            learning_rate=1e-3,
            num_train_epochs=1,
            logging_steps=50,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            ddp_find_unused_parameters=False,
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()
