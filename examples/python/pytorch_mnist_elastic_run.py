"""The network of pytorch_mnist.py in an elastic job, with Horovod's API: a state, commits, and a function that begins
again.

    farandole run -np 4 --min-np 2 python examples/python/pytorch_mnist_elastic_run.py

What is different from pytorch_mnist.py is marked with "Elastic:". When a rank is lost, the others go back to the last
commit. The script runs with Horovod, too, if `farandole` is replaced by `horovod` in it. pytorch_mnist_elastic.py does
without commits.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Subset

import farandole.torch as hvd
from digits import draw
from pytorch_mnist import Net, test


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("-b", "--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("-e", "--epochs", type=int, default=5, help="passes over the training images")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate of one rank")
    parser.add_argument("--momentum", type=float, default=0.5, help="momentum of SGD")
    parser.add_argument("--seed", type=int, default=42, help="seed of the images and of the model")
    parser.add_argument("--train-images", type=int, default=12_000, help="number of images to train on")
    parser.add_argument("--test-images", type=int, default=2_000, help="number of images to test with")
    parser.add_argument("--batches-per-commit", type=int, default=10, help="steps between two commits")
    parser.add_argument(
        "-s", "--short", action="store_true", help="two epochs of 2,000 images: a few seconds on a laptop"
    )
    args = parser.parse_args()
    if args.short:
        args.epochs, args.train_images, args.test_images = 2, 2_000, 500
        args.batch_size, args.momentum = 32, 0.9
    return args


def main() -> None:
    args = parse_args()
    hvd.init()
    torch.manual_seed(args.seed)
    train_images, test_images = draw(args.train_images, args.seed), draw(args.test_images, args.seed + 1)
    # Elastic: what is left of an epoch is dealt anew when ranks have changed.
    sampler = hvd.elastic.ElasticSampler(train_images, seed=args.seed)
    loader = DataLoader(train_images, batch_size=args.batch_size, sampler=sampler)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=args.momentum)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    # Elastic: more ranks, larger steps.
    def scale() -> None:
        for group in optimizer.param_groups:
            group["lr"] = args.lr * hvd.size()

    # Elastic: begins here, and again here with the state of the last commit.
    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.epoch < args.epochs:
            model.train()
            for number, (images, labels) in enumerate(loader):
                optimizer.zero_grad()
                F.cross_entropy(model(images), labels).backward()
                optimizer.step()
                # Elastic: these images are in the model, with the next commit.
                sampler.record_batch(number, args.batch_size)
                if number % args.batches_per_commit == 0:
                    state.commit()
            part = Subset(test_images, range(hvd.rank(), len(test_images), hvd.size()))
            loss, accuracy = test(model, DataLoader(part, batch_size=1000), torch.device("cpu"))
            if hvd.rank() == 0:
                print(f"\nTest set: Average loss: {loss:.4f}, Accuracy: {100 * accuracy:.2f}%\n")
            # Elastic: the next epoch begins at the end of the last, so that a commit never lies between them.
            state.epoch += 1
            sampler.set_epoch(state.epoch)
            state.commit()

    # Elastic: everything that counts. No broadcasts: the first thing that `train` does is to synchronize it.
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)
    state.register_reset_callbacks([scale])
    train(state)


if __name__ == "__main__":
    main()
