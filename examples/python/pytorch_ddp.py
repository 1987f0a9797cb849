"""DistributedDataParallel over the backend "farandole": an ordinary script with one word changed.

    farandole run -np 2 python examples/python/pytorch_ddp.py
    torchrun --nproc-per-node 2 examples/python/pytorch_ddp.py

With `farandole run --trace DIR`, or FARANDOLE_TRACE=DIR under torchrun, `farandole report DIR` says where the time
went. With `--hook` the process group is gloo's, and only gradients go through the engine.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import farandole.torch
import farandole.torch.distributed  # noqa: F401 - makes the backend known where torchrun has not
from digits import draw


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("-b", "--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("-e", "--epochs", type=int, default=5, help="passes over the training images")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate")
    parser.add_argument("--seed", type=int, default=42, help="seed of images and model")
    parser.add_argument("--train-images", type=int, default=12_000, help="number of images to train on")
    parser.add_argument("--test-images", type=int, default=2_000, help="number of images to test with")
    parser.add_argument("--hook", action="store_true", help="gloo's process group, and our hook for gradients")
    parser.add_argument("-s", "--short", action="store_true", help="two epochs of 2,000 images")
    args = parser.parse_args()
    if args.short:
        args.epochs, args.train_images, args.test_images = 2, 2_000, 500
    return args


def test(model: nn.Module, loader: DataLoader) -> float:
    """The share of all ranks' test images that is read correctly."""
    model.eval()
    counts = torch.zeros(2)
    with torch.no_grad():
        for images, labels in loader:
            counts += torch.tensor([(model(images).argmax(dim=1) == labels).sum(), len(labels)])
    dist.all_reduce(counts)
    model.train()
    return (counts[0] / counts[1]).item()


def main() -> None:
    args = parse_args()
    if args.hook:
        farandole.torch.init()
        dist.init_process_group("gloo")
    else:
        # The word that is changed.
        dist.init_process_group("farandole")
    torch.manual_seed(args.seed)
    images, unseen = draw(args.train_images, args.seed), draw(args.test_images, args.seed + 1)
    loader = DataLoader(images, args.batch_size, sampler=DistributedSampler(images))
    test_loader = DataLoader(unseen, 500, sampler=DistributedSampler(unseen, shuffle=False))
    network = nn.Sequential(
        nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(1440, 50), nn.ReLU(), nn.Linear(50, 10)
    )
    model = DistributedDataParallel(network)
    if args.hook:
        model.register_comm_hook(None, farandole.torch.ddp_comm_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(1, args.epochs + 1):
        loader.sampler.set_epoch(epoch)
        for batch, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch), labels)
            loss.backward()
            optimizer.step()
        accuracy = test(model, test_loader)
        if dist.get_rank() == 0:
            print(f"Epoch {epoch}: loss {loss.item():.4f}, test accuracy: {100 * accuracy:.2f}%")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
