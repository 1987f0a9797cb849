"""Two models at a time: each half of the ranks trains one, and all ranks vote together.

    farandole run -np 4 python examples/python/pytorch_process_sets.py

A process set is a part of the ranks with collectives of its own. Here the first half and the second half train a
network each, from different starts and without waiting for each other; in the end the whole world averages the answers
of both, which is better than one of them alone on most data. Needs two ranks at least.
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
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate")
    parser.add_argument("--seed", type=int, default=42, help="seed of the images")
    parser.add_argument("--train-images", type=int, default=8_000, help="number of images to train on")
    parser.add_argument("--test-images", type=int, default=1_000, help="number of images to vote about")
    parser.add_argument("-s", "--short", action="store_true", help="one epoch of 2,000 images")
    args = parser.parse_args()
    if args.short:
        args.epochs, args.train_images, args.test_images = 1, 2_000, 500
    return args


def train(model: nn.Module, args: argparse.Namespace, half: hvd.ProcessSet) -> None:
    """Trains `model` on the ranks of `half`, which share the training images among themselves."""
    images = draw(args.train_images, args.seed)
    # Ranks within the set, from 0 to its size: this is how its members share work.
    sampler = DistributedSampler(images, half.size(), half.rank())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9),
        named_parameters=model.named_parameters(),
        process_set=half,
    )
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for pictures, labels in DataLoader(images, batch_size=args.batch_size, sampler=sampler):
            optimizer.zero_grad()
            F.cross_entropy(model(pictures), labels).backward()
            optimizer.step()


def main() -> None:
    args = parse_args()
    # Process sets that are added while the job runs must be announced.
    hvd.init(process_sets="dynamic")
    if hvd.size() < 2:
        raise SystemExit("two halves need two ranks at least: farandole run -np 2 python ...")
    middle = hvd.size() // 2
    halves = [hvd.ProcessSet(range(middle)), hvd.ProcessSet(range(middle, hvd.size()))]
    for half in halves:
        hvd.add_process_set(half)
    mine = next(half for half in halves if half.included())

    # Each half has a start of its own. The root of a broadcast is a rank of the world, also within a process set.
    torch.manual_seed(args.seed + halves.index(mine))
    model = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 10))
    for name, tensor in model.state_dict().items():
        hvd.broadcast_(tensor, root_rank=mine.ranks[0], name=f"start.{name}", process_set=mine)
    train(model, args, mine)

    pictures, labels = draw(args.test_images, args.seed + 1).tensors
    with torch.no_grad():
        answers = model(pictures).softmax(dim=1)
    accuracy = (answers.argmax(dim=1) == labels).float().mean().item()
    everybody = hvd.allgather_object((halves.index(mine), accuracy))
    # The average over all ranks weighs a half by the number of its ranks.
    together = hvd.allreduce(answers, name="vote")
    voted = (together.argmax(dim=1) == labels).float().mean().item()
    if hvd.rank() == 0:
        for number, half in enumerate(halves):
            own = next(a for index, a in everybody if index == number)
            print(f"Half {number}: ranks {half.ranks}, accuracy: {100 * own:.2f}%")
        print(f"Both together: ranks {hvd.global_process_set.ranks}, accuracy: {100 * voted:.2f}%")
    for half in halves:
        hvd.remove_process_set(half)


if __name__ == "__main__":
    main()
