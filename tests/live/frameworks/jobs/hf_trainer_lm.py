"""Train a small GPT-2 from scratch on generated text with the Trainer; evaluates and saves as it goes."""

import argparse

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)


class Tokens(Dataset):
    """Blocks of a random walk over the vocabulary."""

    def __init__(self, blocks, length, vocabulary, seed):
        walk = np.random.default_rng(seed).integers(-3, 4, blocks * length).cumsum() % vocabulary
        self.blocks = torch.from_numpy(walk).view(blocks, length)

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, index):
        return {"input_ids": self.blocks[index], "labels": self.blocks[index]}


class PrintCallback(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and "loss" in (logs or {}):
            print(f"step {state.global_step} loss {logs['loss']}", flush=True)

    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            print(f"saved checkpoint at step {state.global_step}", flush=True)


class PublishCallback(TrainerCallback):
    """Put the current weights where the dashboard finds them."""

    def __init__(self, trainer, every):
        self.trainer = trainer
        self.every = every

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % self.every == 0 and state.is_world_process_zero:
            print(f"publishing step {state.global_step}", flush=True)
            self.trainer.accelerator.wait_for_everyone()
            self.trainer.save_model("published")


def compute_metrics(prediction):
    right = prediction.predictions.argmax(-1)[:, :-1] == prediction.label_ids[:, 1:]
    return {"accuracy": right.mean()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--publish-every", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=200)
    options = parser.parse_args()
    set_seed(1)
    config = GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2)
    arguments = TrainingArguments(
        output_dir="out",
        num_train_epochs=options.epochs,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=2,
        logging_steps=10,
        eval_strategy="no" if options.publish_every else "steps",
        eval_steps=60,
        save_strategy="no" if options.publish_every else "steps",
        save_steps=120,
        save_total_limit=2,
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
        dataloader_num_workers=0,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Tokens(800, 64, 256, seed=1),
        eval_dataset=Tokens(160, 64, 256, seed=2),
        data_collator=default_data_collator,
        compute_metrics=compute_metrics,
        callbacks=[PrintCallback()],
    )
    if options.publish_every:
        trainer.add_callback(PublishCallback(trainer, options.publish_every))
    trainer.train()
    trainer.save_model("final")


if __name__ == "__main__":
    main()
