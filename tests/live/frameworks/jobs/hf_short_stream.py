"""Small BERT intent classifier from scratch, Trainer over pre-sharded streams."""

import argparse
import logging
import os
import tempfile

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

log = logging.getLogger("intent")

SHARD_SIZES = {"intents-00000": 48_000, "intents-00001": 1_760}


def make_example(seed, vocab, length, labels):
    g = torch.Generator().manual_seed(seed)
    label = int(torch.randint(0, labels, (1,), generator=g))
    ids = torch.randint(100, vocab, (length,), generator=g)
    ids[1:5] = 10 + label
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor(label)}


class ShardStream(IterableDataset):
    def __init__(self, shard, args):
        self.shard, self.args = shard, args

    def __iter__(self):
        base = hash_name(self.shard)
        for i in range(SHARD_SIZES[self.shard]):
            yield make_example(base + i, self.args.vocab, self.args.length, self.args.labels)


class HeldOut(Dataset):
    def __init__(self, args, rows=64):
        self.rows = [make_example(10_000_000 + i, args.vocab, args.length, args.labels) for i in range(rows)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def hash_name(name):
    return int(name.rsplit("-", 1)[1]) * 1_000_000


class ShardedTrainer(Trainer):
    def get_train_dataloader(self):
        return DataLoader(
            self.train_dataset, batch_size=self.args.per_device_train_batch_size, collate_fn=self.data_collator
        )


class StepLog(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % 5 == 0:
            log.info("step %d", state.global_step)

    def on_log(self, args, state, control, logs=None, **kwargs):
        log.info("step %d metrics %s", state.global_step, logs)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=2000)
    p.add_argument("--length", type=int, default=64)
    p.add_argument("--labels", type=int, default=12)
    p.add_argument("--hidden", type=int, default=128)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--max-steps", type=int, default=3000)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "hf_intent_bert"))
    args = p.parse_args()

    rank = int(os.environ.get("RANK", 0))
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [rank {rank}] %(message)s")

    config = BertConfig(
        vocab_size=args.vocab,
        hidden_size=args.hidden,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=4 * args.hidden,
        max_position_embeddings=args.length,
        num_labels=args.labels,
    )
    training_args = TrainingArguments(
        output_dir=args.out,
        use_cpu=True,
        ddp_backend="gloo",
        max_steps=args.max_steps,
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=16,
        learning_rate=3e-4,
        logging_steps=25,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=13,
        average_tokens_across_devices=False,
    )
    shards = sorted(SHARD_SIZES)
    trainer = ShardedTrainer(
        model=BertForSequenceClassification(config),
        args=training_args,
        train_dataset=ShardStream(shards[rank % len(shards)], args),
        eval_dataset=HeldOut(args),
        callbacks=[StepLog()],
    )
    log.info("reading %s", shards[rank % len(shards)])
    trainer.train()
    log.info("finished: %s", trainer.evaluate())


if __name__ == "__main__":
    main()
