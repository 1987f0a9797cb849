"""Trains with DistributedDataParallel on the backend "farandole", until the fault of `faults.py` strikes."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import farandole.torch.distributed
import faults


class Samples(Dataset):
    """A sample for each step."""

    def __len__(self) -> int:
        return faults.batches()

    def __getitem__(self, step: int) -> torch.Tensor:
        faults.load(step)
        return torch.full((8,), float(step))


def main() -> None:
    faults.strike_before_init()
    dist.init_process_group("farandole", timeout=timedelta(seconds=20))
    torch.manual_seed(1)
    layers = [torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)]
    if faults.is_struck("other model"):
        layers.append(torch.nn.Linear(2, 2))
    network = torch.nn.Sequential(*layers)
    if faults.is_struck("frozen parameter"):
        network[0].bias.requires_grad_(False)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, batch in enumerate(DataLoader(Samples(), num_workers=1)):
        faults.strike(step)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        if step == faults.STEP and faults.FAULT == "callback":
            loss.register_hook(lambda _gradient: faults.call_back())
        loss.backward()
        optimizer.step()
        if step == faults.STEP:
            _, shape, dtype = faults.metric()
            dist.all_reduce(torch.ones(shape, dtype=getattr(torch, dtype)))
        if step == faults.STEP and faults.is_struck("extra collective"):
            dist.all_reduce(torch.ones(5))
        if step == faults.STEP and faults.is_struck("disk full"):
            with open(faults.checkpoint(), "wb") as file:
                torch.save(network.state_dict(), file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
