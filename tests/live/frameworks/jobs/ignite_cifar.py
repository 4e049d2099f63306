"""pytorch-ignite: a trainer, an evaluator and handlers, as in its CIFAR example."""

import argparse

import ignite.distributed as idist
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, global_step_from_engine
from ignite.metrics import Accuracy, EpochMetric, Loss
from torch import nn
from torch.utils.data import TensorDataset


def images(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    pixels = torch.randn(count, 3, 16, 16, generator=generator)
    pixels[torch.arange(count), 1, labels] += 2
    return TensorDataset(pixels, labels)


def balanced_accuracy(logits, labels):
    """The mean over classes of the accuracy within the class."""
    right = logits.argmax(1) == labels
    return torch.stack([right[labels == label].float().mean() for label in labels.unique()]).mean().item()


def training(local_rank, config):
    torch.manual_seed(1 + idist.get_rank())
    train_loader = idist.auto_dataloader(images(1600, 1), batch_size=32, shuffle=True, drop_last=True)
    valid_loader = idist.auto_dataloader(images(512, 2), batch_size=64)
    model = idist.auto_model(
        nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4608, 10)
        )
    )
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    criterion = nn.CrossEntropyLoss()

    trainer = create_supervised_trainer(model, optimizer, criterion)
    metrics = {
        "balanced": EpochMetric(balanced_accuracy, check_compute_fn=False),
        "accuracy": Accuracy(),
        "nll": Loss(criterion),
    }
    evaluator = create_supervised_evaluator(model, metrics)

    @trainer.on(Events.ITERATION_COMPLETED(every=20))
    def log_loss(engine):
        if idist.get_rank() == 0:
            print(
                f"epoch {engine.state.epoch} iteration {engine.state.iteration} loss {engine.state.output:.3f}",
                flush=True,
            )

    def validate(engine):
        evaluator.run(valid_loader)
        metrics = evaluator.state.metrics
        if idist.get_rank() == 0:
            print(f"epoch {engine.state.epoch} accuracy {metrics['accuracy']:.3f} nll {metrics['nll']:.3f}", flush=True)

    def validate_and_log(engine):
        if idist.get_rank() == 0:
            print(f"epoch {engine.state.epoch} completed", flush=True)
            validate(engine)

    if config["log_validation"]:
        trainer.add_event_handler(Events.EPOCH_COMPLETED(every=2), validate_and_log)
    else:
        trainer.add_event_handler(Events.EPOCH_COMPLETED(every=2), validate)
        saver = Checkpoint(
            {"model": model, "optimizer": optimizer},
            DiskSaver("out", require_empty=False),
            n_saved=2,
            global_step_transform=global_step_from_engine(trainer),
        )
        trainer.add_event_handler(Events.EPOCH_COMPLETED(every=4), saver)
    trainer.run(train_loader, max_epochs=config["epochs"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--log-validation", action="store_true")
    config = vars(parser.parse_args())
    with idist.Parallel(backend="gloo") as parallel:
        parallel.run(training, config)


if __name__ == "__main__":
    main()
