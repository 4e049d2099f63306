"""Short epochs with DataLoader workers that are started anew for each one."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from lifetime import Lifetime, parser
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Waves(Dataset):
    def __len__(self):
        return 1200

    def __getitem__(self, index):
        torch.manual_seed(index)
        label = index % 4
        return torch.sin(torch.linspace(0, 3 + 2 * label, 2000)) + 0.3 * torch.randn(2000), label


def main():
    lifetime = Lifetime(parser().parse_args().seconds)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = Waves()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=24, sampler=sampler, num_workers=2)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2000, 256), nn.ReLU(), nn.Linear(256, 4)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    epoch = 0
    while lifetime.goes_on():
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        epoch += 1
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
