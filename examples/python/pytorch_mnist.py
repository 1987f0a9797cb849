"""A convolutional network learns to read digits, data-parallel.

    farandole run -np 2 python examples/python/pytorch_mnist.py

What makes a script for one process one for many is marked with "Farandole:". The digits are drawn (see digits.py), so
nothing is downloaded. Every rank trains on its part of the images; the test accuracy is the average over all ranks.
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
    parser.add_argument("-b", "--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("--test-batch-size", type=int, default=1000, help="images per rank and step of testing")
    parser.add_argument("-e", "--epochs", type=int, default=5, help="passes over the training images")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate of one rank")
    parser.add_argument("--momentum", type=float, default=0.5, help="momentum of SGD")
    parser.add_argument("--seed", type=int, default=42, help="seed of the images and of the model")
    parser.add_argument("--train-images", type=int, default=12_000, help="number of images to train on")
    parser.add_argument("--test-images", type=int, default=2_000, help="number of images to test with")
    parser.add_argument("--log-interval", type=int, default=10, help="steps between two lines of progress")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as 16-bit floats")
    parser.add_argument("--use-adasum", action="store_true", help="combine gradients with Adasum")
    parser.add_argument(
        "--gradient-predivide-factor", type=float, default=1.0, help="divide gradients by this before summing"
    )
    parser.add_argument("--no-cuda", action="store_true", help="train on the CPU even where there is a GPU")
    parser.add_argument(
        "-s", "--short", action="store_true", help="two epochs of 2,000 images: a few seconds on a laptop"
    )
    args = parser.parse_args()
    if args.short:
        args.epochs, args.train_images, args.test_images = 2, 2_000, 500
        args.batch_size, args.momentum = 32, 0.9
    return args


class Net(nn.Module):
    """Two convolutions, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader, device: torch.device, epoch: int, every: int
) -> None:
    model.train()
    # Farandole: another order of the images in each epoch.
    loader.sampler.set_epoch(epoch)
    for step, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        if step % every == 0 and hvd.rank() == 0:
            print(f"Train Epoch: {epoch} [{step * len(images)}/{len(loader.sampler)}]\tLoss: {loss.item():.6f}")


def test(model: nn.Module, loader: DataLoader, device: torch.device) -> tuple[float, float]:
    """Loss and accuracy over the test images of all ranks."""
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64)
    with torch.no_grad():
        for images, labels in loader:
            answers = model(images.to(device))
            loss = F.cross_entropy(answers, labels.to(device), reduction="sum")
            right = (answers.argmax(dim=1).cpu() == labels).sum()
            sums += torch.tensor([loss.item(), right.item(), len(labels)], dtype=torch.float64)
    # Farandole: add up what the ranks counted.
    loss, right, count = hvd.allreduce(sums, name="test_result", op=hvd.Sum).tolist()
    return loss / count, right / count


def main() -> None:
    args = parse_args()
    # Farandole: join the job.
    hvd.init()
    torch.manual_seed(args.seed)
    device = torch.device("cpu")
    if torch.cuda.is_available() and not args.no_cuda:
        # Farandole: one GPU for each rank of a host.
        device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)

    # Farandole: every rank draws the same images and takes its part of them.
    train_images, test_images = draw(args.train_images, args.seed), draw(args.test_images, args.seed + 1)
    train_loader = DataLoader(
        train_images, batch_size=args.batch_size, sampler=DistributedSampler(train_images, hvd.size(), hvd.rank())
    )
    test_loader = DataLoader(
        test_images, batch_size=args.test_batch_size, sampler=DistributedSampler(test_images, hvd.size(), hvd.rank())
    )

    model = Net().to(device)
    # Farandole: more ranks, larger steps. Adasum needs no such scaling.
    lr = args.lr if args.use_adasum else args.lr * hvd.size()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=args.momentum)
    # Farandole: begin everywhere with the weights of rank 0, and average gradients in every step.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )

    for epoch in range(1, args.epochs + 1):
        train(model, optimizer, train_loader, device, epoch, args.log_interval)
        loss, accuracy = test(model, test_loader, device)
        # Farandole: one rank speaks for all.
        if hvd.rank() == 0:
            print(f"\nTest set: Average loss: {loss:.4f}, Accuracy: {100 * accuracy:.2f}%\n")


if __name__ == "__main__":
    main()
