"""FSDP2 (`fully_shard`) over the backend "farandole": every rank holds its part of the weights.

    farandole run -np 2 python examples/python/pytorch_fsdp2.py

Weights are gathered layer by layer when they are needed, gradients are scattered as they are reduced, and the optimizer
keeps the state of this rank's part alone. At the end the parts are saved, each by its rank, and loaded into a fresh
model.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import farandole.torch.distributed  # noqa: F401 - makes the backend known where torchrun has not
from digits import draw


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("-b", "--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("-e", "--epochs", type=int, default=4, help="passes over the training images")
    parser.add_argument("--lr", type=float, default=0.002, help="learning rate")
    parser.add_argument("--width", type=int, default=512, help="width of the layers")
    parser.add_argument("--seed", type=int, default=42, help="seed of images and model")
    parser.add_argument("--train-images", type=int, default=8_000, help="number of images to train on")
    parser.add_argument("-s", "--short", action="store_true", help="two epochs of 2,000 images, narrow layers")
    args = parser.parse_args()
    if args.short:
        args.epochs, args.train_images, args.width = 2, 2_000, 128
    return args


def sharded_model(args: argparse.Namespace) -> nn.Sequential:
    """A model of which each rank holds its part. The same seed gives the same weights on all ranks."""
    torch.manual_seed(args.seed)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(28 * 28, args.width), nn.ReLU(), nn.Linear(args.width, args.width), nn.ReLU(),
        nn.Linear(args.width, 10),
    )
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return model


def main() -> None:
    args = parse_args()
    dist.init_process_group("farandole")
    rank = dist.get_rank()
    model = sharded_model(args)
    if rank == 0:
        held = sum(parameter.to_local().numel() for parameter in model.parameters())
        print(f"Rank 0 holds {held} of {sum(parameter.numel() for parameter in model.parameters())} weights")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    images = draw(args.train_images, args.seed)
    loader = DataLoader(images, args.batch_size, sampler=DistributedSampler(images))
    for epoch in range(1, args.epochs + 1):
        loader.sampler.set_epoch(epoch)
        for batch, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch), labels)
            loss.backward()
            optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        if rank == 0:
            print(f"Epoch {epoch}: loss {mean.item():.4f}")

    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    checkpoint.save(get_model_state_dict(model), checkpoint_id=folder[0])
    restored = sharded_model(args)
    state = get_model_state_dict(restored)
    checkpoint.load(state, checkpoint_id=folder[0])
    set_model_state_dict(restored, state)
    same = all(torch.equal(a.to_local(), b.to_local()) for a, b in zip(model.parameters(), restored.parameters()))
    dist.barrier()
    if rank == 0:
        print(f"Restored: {'the same weights' if same else 'other weights'}")
        shutil.rmtree(folder[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
