"""ResNet-50 learns to classify images, from a folder or synthetic ones, data-parallel.

    farandole run -np 2 python examples/python/pytorch_resnet50.py --train-dir images/train --val-dir images/val
    farandole run -np 2 python examples/python/pytorch_resnet50.py --short

A folder holds one folder of images for each class; reading it needs Pillow. Without --train-dir, images are made up:
each class has a colour and a direction of stripes. The learning rate is warmed up from that of one rank to that of all,
as in Goyal et al., "Accurate, Large Minibatch SGD"; rank 0 writes a checkpoint after each epoch if asked to, and every
rank continues from it if it is there.
"""

from __future__ import annotations

import argparse
import math
import os
import pathlib
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import farandole.torch as hvd
import resnet

_IMAGE_ENDINGS = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".webp"}
# Mean and deviation of the colours of photographs, as everybody uses them with this network.
_MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
_DEVIATION = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--train-dir", type=pathlib.Path, help="folder of training images; synthetic images if not given"
    )
    parser.add_argument(
        "--val-dir", type=pathlib.Path, help="folder of validation images; those of training if not given"
    )
    parser.add_argument("--checkpoint-format", help="where to write checkpoints, for example checkpoint-{epoch}.pt")
    parser.add_argument("-m", "--model", default="resnet50", choices=resnet.MODELS, help="which residual network")
    parser.add_argument("-b", "--batch-size", type=int, default=32, help="images per rank and backward pass")
    parser.add_argument("--val-batch-size", type=int, default=32, help="images per rank and step of validation")
    parser.add_argument(
        "--batches-per-allreduce", type=int, default=1, help="backward passes before gradients are sent"
    )
    parser.add_argument("-e", "--epochs", type=int, default=90, help="passes over the images")
    parser.add_argument("--base-lr", type=float, default=0.0125, help="learning rate of one rank")
    parser.add_argument(
        "--warmup-epochs", type=float, default=5, help="epochs until the learning rate of all ranks is reached"
    )
    parser.add_argument("--momentum", type=float, default=0.9, help="momentum of SGD")
    parser.add_argument("--wd", type=float, default=0.00005, help="weight decay")
    parser.add_argument("--image-size", type=int, default=224, help="height and width that images are brought to")
    parser.add_argument("--synthetic-images", type=int, default=1024, help="number of synthetic images")
    parser.add_argument("--synthetic-classes", type=int, default=10, help="number of classes of synthetic images")
    parser.add_argument("--workers", type=int, default=0, help="processes per rank that read images")
    parser.add_argument("--seed", type=int, default=42, help="seed of the synthetic images and of the model")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as 16-bit floats")
    parser.add_argument("--use-adasum", action="store_true", help="combine gradients with Adasum")
    parser.add_argument(
        "--gradient-predivide-factor", type=float, default=1.0, help="divide gradients by this before summing"
    )
    parser.add_argument("--no-cuda", action="store_true", help="train on the CPU even where there is a GPU")
    parser.add_argument("-s", "--short", action="store_true", help="one epoch of small images: seconds on a laptop")
    args = parser.parse_args()
    if args.short:
        args.epochs, args.warmup_epochs, args.image_size = 1, 0.5, 64
        args.batch_size, args.val_batch_size, args.synthetic_images = 4, 4, 32
    return args


class Stripes(Dataset):
    """Synthetic images: the class decides about colour and direction of stripes, chance about everything else."""

    def __init__(self, count: int, classes: int, side: int, seed: int) -> None:
        self.count, self.classes, self.side, self.seed = count, classes, side, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        chance = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        label = index % self.classes
        angle = math.pi * label / self.classes
        across = torch.linspace(-3, 3, self.side)
        phase = 2 * math.pi * torch.rand((), generator=chance)
        wave = torch.sin(4 * (across[:, None] * math.sin(angle) + across[None, :] * math.cos(angle)) + phase)
        colour = torch.tensor([math.sin(angle + third * 2 * math.pi / 3) for third in range(3)]).view(3, 1, 1)
        return colour * wave + 0.3 * torch.randn(3, self.side, self.side, generator=chance), label


class ImageFolder(Dataset):
    """The images below `folder`, where each folder is a class; classes are numbered in the order of their names."""

    def __init__(self, folder: pathlib.Path, side: int) -> None:
        try:
            from PIL import Image
        except ImportError:
            raise SystemExit("reading a folder of images needs Pillow: pip install pillow") from None
        self.open, self.side = Image.open, side
        self.class_names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
        self.files = [
            (file, label)
            for label, name in enumerate(self.class_names)
            for file in sorted((folder / name).rglob("*"))
            if file.suffix.lower() in _IMAGE_ENDINGS
        ]
        if not self.files:
            raise SystemExit(f"{folder} holds no images; one folder for each class is expected in it")

    @property
    def classes(self) -> int:
        return len(self.class_names)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        file, label = self.files[index]
        with self.open(file) as image:
            image = image.convert("RGB").resize((self.side, self.side))
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(self.side, self.side, 3)
        return (pixels.permute(2, 0, 1).float() / 255 - _MEAN) / _DEVIATION, label


def load_data(args: argparse.Namespace) -> tuple[Dataset, Dataset]:
    if args.train_dir is None:
        return (
            Stripes(args.synthetic_images, args.synthetic_classes, args.image_size, args.seed),
            Stripes(max(args.synthetic_images // 2, 1), args.synthetic_classes, args.image_size, args.seed + 1),
        )
    training = ImageFolder(args.train_dir, args.image_size)
    return training, ImageFolder(args.val_dir or args.train_dir, args.image_size)


def learning_rate(args: argparse.Namespace, epoch: float) -> float:
    """That of one rank at first, that of all ranks after the warm-up, then a tenth after 30, 60 and 80 epochs."""
    ranks = 1 if args.use_adasum else hvd.size()
    if epoch < args.warmup_epochs:
        scale = 1 + (ranks - 1) * epoch / args.warmup_epochs
    else:
        scale = ranks * 0.1 ** sum(epoch >= border for border in (30, 60, 80))
    return args.base_lr * args.batches_per_allreduce * scale


def averages(sums: list[float], name: str) -> list[float]:
    """Sums and, last, the count of this rank, to averages over all ranks."""
    *totals, count = hvd.allreduce(torch.tensor(sums, dtype=torch.float64), name=name, op=hvd.Sum).tolist()
    return [total / count for total in totals]


def train_epoch(args, model, optimizer, loader, device, epoch: int) -> list[float]:
    model.train()
    loader.sampler.set_epoch(epoch)
    sums = [0.0, 0.0, 0.0]
    for step, (images, labels) in enumerate(loader):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(args, epoch + step / len(loader))
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        # One step of the optimizer for several passes; every pass adds to the gradients.
        for begin in range(0, len(images), args.batch_size):
            part, truth = images[begin : begin + args.batch_size], labels[begin : begin + args.batch_size]
            answers = model(part)
            loss = F.cross_entropy(answers, truth)
            (loss * len(part) / len(images)).backward()
            sums[0] += loss.item() * len(part)
            sums[1] += (answers.argmax(dim=1) == truth).sum().item()
            sums[2] += len(part)
        optimizer.step()
    return averages(sums, "train")


@torch.no_grad()
def validate(model, loader, device) -> list[float]:
    model.eval()
    sums = [0.0, 0.0, 0.0]
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        answers = model(images)
        sums[0] += F.cross_entropy(answers, labels, reduction="sum").item()
        sums[1] += (answers.argmax(dim=1) == labels).sum().item()
        sums[2] += len(labels)
    return averages(sums, "validate")


def last_checkpoint(args: argparse.Namespace) -> int:
    """The epoch to continue from, as rank 0 sees it; the other ranks may have another disk."""
    found = 0
    if args.checkpoint_format and hvd.rank() == 0:
        epochs = range(1, args.epochs + 1)
        found = max((e for e in epochs if pathlib.Path(args.checkpoint_format.format(epoch=e)).exists()), default=0)
    return hvd.broadcast_object(found, root_rank=0, name="resume_from_epoch")


def write_checkpoint(state: dict[str, Any], path: str) -> None:
    """Writes beside the file and renames, so that the file is always complete."""
    unfinished = f"{path}.{os.getpid()}.unfinished"
    with open(unfinished, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    # Farandole: raises on a rank that an elastic job has replaced meanwhile.
    hvd.elastic.fence()
    os.replace(unfinished, path)


def main() -> None:
    args = parse_args()
    hvd.init()
    torch.manual_seed(args.seed)
    device = torch.device("cpu")
    if torch.cuda.is_available() and not args.no_cuda:
        device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)

    training, validation = load_data(args)
    per_step = args.batch_size * args.batches_per_allreduce

    def loader(data: Dataset, batch: int) -> DataLoader:
        sampler = DistributedSampler(data, hvd.size(), hvd.rank())
        return DataLoader(data, batch_size=batch, sampler=sampler, num_workers=args.workers)

    train_loader, val_loader = loader(training, per_step), loader(validation, args.val_batch_size)
    model = resnet.MODELS[args.model](training.classes).to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=learning_rate(args, 0), momentum=args.momentum, weight_decay=args.wd
    )
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        backward_passes_per_step=args.batches_per_allreduce,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )
    # Rank 0 reads the checkpoint, if there is one; everybody else gets it from there.
    done = last_checkpoint(args)
    if done and hvd.rank() == 0:
        saved = torch.load(args.checkpoint_format.format(epoch=done), map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(done, args.epochs):
        train_loss, train_accuracy = train_epoch(args, model, optimizer, train_loader, device, epoch)
        val_loss, val_accuracy = validate(model, val_loader, device)
        if hvd.rank() != 0:
            continue
        print(f"Train Epoch #{epoch + 1}: loss={train_loss:.4f}, accuracy={100 * train_accuracy:.2f}%")
        print(f"Validate Epoch #{epoch + 1}: loss={val_loss:.4f}, accuracy={100 * val_accuracy:.2f}%", flush=True)
        if args.checkpoint_format:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            write_checkpoint(state, args.checkpoint_format.format(epoch=epoch + 1))


if __name__ == "__main__":
    main()
