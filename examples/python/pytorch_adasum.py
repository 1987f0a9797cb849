"""Adasum: gradients combined by how much they agree, with the learning rate of a single rank.

    farandole run -np 2 python examples/python/pytorch_adasum.py

Gradients that point into the same direction say the same thing twice, and Adasum averages them; gradients at right
angles say different things, and it adds them up. In between it does something in between. So the learning rate need not
grow with the number of ranks. The example shows the rule on two vectors and then trains a network with it, next to a
plain average.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import farandole.torch as hvd
from digits import draw


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("-b", "--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("-e", "--epochs", type=int, default=4, help="passes over the training images")
    parser.add_argument("--lr", type=float, default=0.03, help="learning rate, whatever the number of ranks")
    parser.add_argument("--seed", type=int, default=42, help="seed of images and model")
    parser.add_argument("--train-images", type=int, default=8_000, help="number of images to train on")
    parser.add_argument("-s", "--short", action="store_true", help="one epoch of 2,000 images")
    args = parser.parse_args()
    if args.short:
        args.epochs, args.train_images = 1, 2_000
    return args


def show_the_rule() -> None:
    """What becomes of the same vector on all ranks, and of vectors at right angles."""
    same = hvd.allreduce(torch.tensor([1.0, 2.0]), name="same", op=hvd.Adasum)
    axis = torch.zeros(hvd.size())
    axis[hvd.rank()] = 1.0
    apart = hvd.allreduce(axis, name="apart", op=hvd.Adasum)
    if hvd.rank() == 0:
        print(f"Parallel: {same.tolist()}")
        print(f"Orthogonal: {apart.tolist()}")


def final_loss(args: argparse.Namespace, op: int) -> float:
    """Trains a fresh network with gradients combined by `op`; the loss over the last fifth of the steps."""
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 10))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=args.lr), named_parameters=model.named_parameters(), op=op
    )
    images = draw(args.train_images, args.seed)
    sampler = DistributedSampler(images, hvd.size(), hvd.rank())
    losses = []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for pictures, labels in DataLoader(images, batch_size=args.batch_size, sampler=sampler):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(pictures), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    last = torch.tensor(losses[-max(len(losses) // 5, 1) :]).mean()
    return hvd.allreduce(last, name="final_loss").item()


def main() -> None:
    args = parse_args()
    hvd.init()
    show_the_rule()
    averaged = final_loss(args, hvd.Average)
    adapted = final_loss(args, hvd.Adasum)
    if hvd.rank() == 0:
        print(f"Loss with Average: {averaged:.4f}")
        print(f"Loss with Adasum: {adapted:.4f}")


if __name__ == "__main__":
    main()
