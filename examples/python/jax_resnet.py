"""How many images a second a residual network of Flax learns from, on random images.

    farandole run -np 2 python examples/python/jax_resnet.py --batch-size 8

The images stay the same in every step; nothing is read or augmented. Statistics of batch normalisation are averaged
over the ranks with the gradients' own step, so that all ranks keep the same network.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import timeit
from typing import Any

# Arrays in host memory; see docs/jax.md.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import farandole.jax as hvd

STAGES = {"resnet18": ([2, 2, 2, 2], False), "resnet50": ([3, 4, 6, 3], True)}
"""Blocks of each stage, and whether they have a bottleneck."""


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("-m", "--model", default="resnet50", choices=sorted(STAGES), help="network to train")
    parser.add_argument("-b", "--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--image-size", type=int, default=224, help="height and width of the images")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate of one rank")
    parser.add_argument("-w", "--num-warmup-batches", type=int, default=10, help="steps before the clock starts")
    parser.add_argument("--num-batches-per-iter", type=int, default=10, help="steps in one iteration of the benchmark")
    parser.add_argument("-n", "--num-iters", type=int, default=10, help="iterations of the benchmark")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as 16-bit floats")
    parser.add_argument("-s", "--short", action="store_true", help="ResNet-18, four images of 32 by 32, two iterations")
    args = parser.parse_args()
    if args.short:
        args.model, args.batch_size, args.image_size = "resnet18", 4, 32
        args.num_warmup_batches, args.num_batches_per_iter, args.num_iters = 1, 2, 2
    return args


class Block(nn.Module):
    """A residual block: two convolutions of 3 by 3, or one between two of 1 by 1."""

    width: int
    stride: int
    bottleneck: bool
    train: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        norm = functools.partial(nn.BatchNorm, use_running_average=not self.train, momentum=0.9)
        conv = functools.partial(nn.Conv, use_bias=False)
        stride = (self.stride, self.stride)
        if self.bottleneck:
            out = self.width * 4
            y = nn.relu(norm()(conv(self.width, (1, 1))(x)))
            y = nn.relu(norm()(conv(self.width, (3, 3), stride)(y)))
            y = norm(scale_init=nn.initializers.zeros_init())(conv(out, (1, 1))(y))
        else:
            out = self.width
            y = nn.relu(norm()(conv(out, (3, 3), stride)(x)))
            y = norm(scale_init=nn.initializers.zeros_init())(conv(out, (3, 3))(y))
        if x.shape != y.shape:
            x = norm()(conv(out, (1, 1), stride)(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    """A residual network for images of 1,000 classes."""

    model: str
    train: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        stages, bottleneck = STAGES[self.model]
        x = nn.Conv(64, (7, 7), (2, 2), use_bias=False)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not self.train, momentum=0.9)(x))
        x = nn.max_pool(x, (3, 3), (2, 2), padding="SAME")
        for number, blocks in enumerate(stages):
            for block in range(blocks):
                stride = 2 if number > 0 and block == 0 else 1
                x = Block(64 * 2**number, stride, bottleneck, self.train)(x)
        return nn.Dense(1000)(x.mean((1, 2)))


def log(line: str) -> None:
    if hvd.rank() == 0:
        print(line, flush=True)


def main() -> None:
    args = parse_args()
    hvd.init()
    network = ResNet(args.model)
    chance = np.random.default_rng(hvd.rank())
    images = jnp.asarray(chance.normal(size=(args.batch_size, args.image_size, args.image_size, 3)), jnp.float32)
    labels = jnp.asarray(chance.integers(1000, size=args.batch_size))

    tx = hvd.DistributedOptimizer(
        optax.sgd(args.lr * hvd.size(), momentum=0.9),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
    )
    # Farandole: begin everywhere with the network of rank 0.
    variables = hvd.broadcast_parameters(jax.jit(network.init)(jax.random.key(hvd.rank()), images))
    params, stats = variables["params"], variables["batch_stats"]
    state = tx.init(params)

    def loss_of(params: Any, stats: Any) -> tuple[jax.Array, Any]:
        logits, changed = network.apply({"params": params, "batch_stats": stats}, images, mutable=["batch_stats"])
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return loss, changed["batch_stats"]

    # Farandole: as jax.jit; a program with collectives is dispatched sooner.
    @functools.partial(hvd.jit, donate_argnums=(0, 1, 2))
    def train_step(params: Any, stats: Any, state: Any) -> tuple[Any, Any, Any, jax.Array]:
        (loss, stats), grads = jax.value_and_grad(loss_of, has_aux=True)(params, stats)
        # Farandole: gradients are averaged in `update`; the statistics of the ranks' batches here.
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), hvd.pmean(stats), state, loss

    def train(batches: int) -> None:
        nonlocal params, stats, state
        for _ in range(batches):
            params, stats, state, loss = train_step(params, stats, state)
        jax.block_until_ready(loss)

    log(f"Model: {args.model}")
    log(f"Batch size: {args.batch_size}")
    log(f"Number of CPUs: {hvd.size()}")
    log("Running warmup...")
    train(args.num_warmup_batches)
    log("Running benchmark...")
    speeds = []
    for number in range(args.num_iters):
        seconds = timeit.timeit(lambda: train(args.num_batches_per_iter), number=1)
        speeds.append(args.batch_size * args.num_batches_per_iter / seconds)
        log(f"Iter #{number}: {speeds[-1]:.1f} img/sec per CPU")
    mean, spread = statistics.mean(speeds), 1.96 * statistics.pstdev(speeds)
    log(f"Img/sec per CPU: {mean:.1f} +-{spread:.1f}")
    log(f"Total img/sec on {hvd.size()} CPU(s): {hvd.size() * mean:.1f} +-{hvd.size() * spread:.1f}")


if __name__ == "__main__":
    main()
