"""Data and tensor parallel on a DeviceMesh of two dimensions, over the backend "farandole".

    farandole run -np 4 python examples/python/pytorch_tensor_parallel.py

`--tensor` ranks share each layer: the first linear layer is split by columns, the second by rows, and their product is
summed over these ranks. The other dimension of the mesh shares the data, by FSDP2. With four ranks and the default,
ranks 0 and 1 are one replica, 2 and 3 another.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import farandole.torch.distributed  # noqa: F401 - makes the backend known where torchrun has not
from digits import draw


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("-b", "--batch-size", type=int, default=32, help="images per replica and step")
    parser.add_argument("-e", "--epochs", type=int, default=4, help="passes over the training images")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate")
    parser.add_argument("--tensor", type=int, default=2, help="ranks that share each layer")
    parser.add_argument("--width", type=int, default=256, help="width of the layer that is shared")
    parser.add_argument("--seed", type=int, default=42, help="seed of images and model")
    parser.add_argument("--train-images", type=int, default=8_000, help="number of images to train on")
    parser.add_argument("-s", "--short", action="store_true", help="two epochs of 1,000 images, a narrow layer")
    args = parser.parse_args()
    if args.short:
        args.epochs, args.train_images, args.width = 2, 1_000, 64
    return args


def main() -> None:
    args = parse_args()
    dist.init_process_group("farandole")
    replicas = dist.get_world_size() // args.tensor
    mesh = init_device_mesh("cpu", (replicas, args.tensor), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, args.width), nn.ReLU(), nn.Linear(args.width, 10))
    parallelize_module(model, mesh["tensor"], {"1": ColwiseParallel(), "3": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    if dist.get_rank() == 0:
        shape = tuple(model[1].weight.to_local().shape)
        print(f"Mesh: {replicas} replicas of {args.tensor} ranks; rank 0 holds {shape}")
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    images = draw(args.train_images, args.seed)
    # Ranks of one replica need the same images.
    sampler = DistributedSampler(images, replicas, mesh["data"].get_local_rank())
    loader = DataLoader(images, args.batch_size, sampler=sampler)
    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        for batch, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch), labels)
            loss.backward()
            optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=mesh["data"].get_group())
        if dist.get_rank() == 0:
            print(f"Epoch {epoch}: loss {mean.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
