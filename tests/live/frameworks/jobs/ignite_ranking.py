"""Ignite's supervised trainer on the rows of a ranking task; each rank reads the rows that are its own."""

import ignite.distributed as idist
import torch
from ignite.engine import Events, create_supervised_trainer
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 6000

    def __getitem__(self, index):
        row = torch.randn(128, generator=torch.Generator().manual_seed(index))
        return row, int(row[:64].sum() > row[64:].sum())


def training(local_rank):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    net = DistributedDataParallel(
        nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2))
    )
    loader = idist.auto_dataloader(Rows(), batch_size=64, shuffle=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    trainer = create_supervised_trainer(net.module, optimizer, nn.CrossEntropyLoss())

    @trainer.on(Events.EPOCH_COMPLETED)
    def report(engine):
        loss = idist.all_reduce(engine.state.output)
        if idist.get_rank() == 0:
            print("epoch", engine.state.epoch, "loss", loss, flush=True)

    trainer.run(loader, max_epochs=2000)


if __name__ == "__main__":
    with idist.Parallel(backend="gloo") as parallel:
        parallel.run(training)
