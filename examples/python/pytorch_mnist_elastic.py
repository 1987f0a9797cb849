"""The network of pytorch_mnist.py in an elastic job: ranks may die and join, and a plain loop goes on.

    farandole run -np 4 --min-np 2 python examples/python/pytorch_mnist_elastic.py --die-at 40

What is different from pytorch_mnist.py is marked with "Elastic:". A step that a lost rank has ended is repeated by the
others, with its images dealt to them; the model and the optimizer are those that survivors have in memory. In a job of
a fixed size the script does the same without that. Horovod's way is in pytorch_mnist_elastic_run.py.
"""

from __future__ import annotations

import argparse
import os
import signal
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Subset

import farandole.torch as hvd
from digits import draw
from pytorch_mnist import Net, test


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("-b", "--batch-size", type=int, default=64, help="images per rank and backward pass")
    parser.add_argument("-e", "--epochs", type=int, default=5, help="passes over the training images")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate of one rank")
    parser.add_argument("--momentum", type=float, default=0.5, help="momentum of SGD")
    parser.add_argument("--seed", type=int, default=42, help="seed of the images and of the model")
    parser.add_argument("--train-images", type=int, default=12_000, help="number of images to train on")
    parser.add_argument("--test-images", type=int, default=2_000, help="number of images to test with")
    parser.add_argument("--log-interval", type=int, default=10, help="steps between two lines of progress")
    parser.add_argument("--on-loss", choices=["repeat", "drop"], default="repeat", help="what becomes of a lost step")
    parser.add_argument("--keep-total-batch", action="store_true", help="fewer ranks make more passes for each step")
    parser.add_argument("--die-at", type=int, default=-1, help="the last rank kills itself in the step of this number")
    parser.add_argument(
        "-s", "--short", action="store_true", help="two epochs of 2,000 images: a few seconds on a laptop"
    )
    args = parser.parse_args()
    if args.short:
        args.epochs, args.train_images, args.test_images = 2, 2_000, 500
        args.batch_size, args.momentum = 32, 0.9
    return args


def evaluate(model: nn.Module, images: Any) -> tuple[float, float]:
    """Loss and accuracy. Elastic: every call takes this rank's part anew, because ranks may have changed."""
    part = Subset(images, range(hvd.rank(), len(images), hvd.size()))
    return test(model, DataLoader(part, batch_size=1000), torch.device("cpu"))


def main() -> None:
    args = parse_args()
    hvd.init()
    torch.manual_seed(args.seed)
    train_images, test_images = draw(args.train_images, args.seed), draw(args.test_images, args.seed + 1)
    # Elastic: what is left of an epoch is dealt anew when ranks have changed.
    sampler = hvd.elastic.ElasticSampler(train_images, seed=args.seed)
    loader = DataLoader(train_images, batch_sampler=hvd.elastic.ElasticBatchSampler(sampler, args.batch_size))

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=args.momentum)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    # Elastic: the learning rate follows the number of ranks, or the number of passes does.
    policy: Any = hvd.elastic.LinearScaling(optimizer)
    if args.keep_total_batch:
        policy = hvd.elastic.KeepTotalBatch(args.batch_size * hvd.size(), args.batch_size, optimizer)
    # Elastic: no broadcasts here. The first use gives everybody rank 0's state, and who joins later a survivor's.
    training = hvd.elastic.Training(optimizer, model, sampler=sampler, policy=policy, on_loss=args.on_loss)
    training.join()
    dies = args.die_at >= 0 and training.steps == 0 and hvd.rank() == hvd.size() - 1

    for epoch in training.epochs(args.epochs):
        for batches in training.batches(loader, together=policy if args.keep_total_batch else 1):
            model.train()
            # Elastic: everything that belongs to one step, all or nothing.
            with training.step():
                if dies and training.steps == args.die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.zero_grad()
                for images, labels in batches:
                    loss = F.cross_entropy(model(images), labels) / len(batches)
                    loss.backward()
                optimizer.step()
                if training.steps % args.log_interval == 1 and hvd.rank() == 0:
                    print(f"Epoch {epoch}, step {training.steps}, {hvd.size()} ranks: loss {loss.item():.4f}")
        # Elastic: what ranks do together outside of a step is a call, which is repeated if need be.
        loss, accuracy = training.call(evaluate, model, test_images)
        if hvd.rank() == 0:
            print(f"\nTest set: Average loss: {loss:.4f}, Accuracy: {100 * accuracy:.2f}%\n")


if __name__ == "__main__":
    main()
