"""Trains with `farandole.torch`, until the fault of `faults.py` strikes."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, Dataset

import farandole.torch as hvd
import faults


class Samples(Dataset):
    """A sample for each step."""

    def __len__(self) -> int:
        return faults.batches()

    def __getitem__(self, step: int) -> torch.Tensor:
        faults.load(step)
        return torch.full((8,), float(step))


def build_model() -> torch.nn.Module:
    torch.manual_seed(hvd.rank() if faults.FAULT == "no broadcast" else 1)
    layers = [torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)]
    if faults.is_struck("other model"):
        layers.append(torch.nn.Linear(2, 2))
    model = torch.nn.Sequential(*layers)
    if faults.is_struck("frozen parameter"):
        model[0].bias.requires_grad_(False)
    return model


def main() -> None:
    faults.strike_before_init()
    hvd.init()
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    if faults.FAULT not in ("no broadcast", "other model"):
        hvd.broadcast_parameters(model.state_dict(), root_rank=1 if faults.is_struck("other root") else 0)
    for step, batch in enumerate(DataLoader(Samples(), num_workers=1)):
        faults.strike(step)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        if step == faults.STEP and faults.FAULT == "callback":
            loss.register_hook(lambda _gradient: faults.call_back())
        loss.backward()
        optimizer.step()
        if step == faults.STEP:
            name, shape, dtype = faults.metric()
            hvd.allreduce(torch.ones(shape, dtype=getattr(torch, dtype)), name=name, op=hvd.Sum)
        if step == faults.STEP and faults.is_struck("extra collective"):
            hvd.allreduce(torch.ones(2), name="extra")
        if step == faults.STEP and faults.is_struck("disk full"):
            with open(faults.checkpoint(), "wb") as file:
                torch.save(model.state_dict(), file)


if __name__ == "__main__":
    main()
