"""A convolutional network learns to read digits with JAX, Flax and Optax, data-parallel.

    farandole run -np 2 python examples/python/jax_mnist.py

What makes a script for one process one for many is marked with "Farandole:". The digits are drawn (see digits.py), so
nothing is downloaded. Every rank trains on its part of the images; the accuracy is of all ranks' test images together.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

# Arrays in host memory; see docs/jax.md.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import farandole.jax as hvd
from digits import draw_arrays


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("-b", "--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("-e", "--epochs", type=int, default=5, help="passes over the training images")
    parser.add_argument("--lr", type=float, default=0.001, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=42, help="seed of the images and of the model")
    parser.add_argument("--train-images", type=int, default=12_000, help="number of images to train on")
    parser.add_argument("--test-images", type=int, default=2_000, help="number of images to test with")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as 16-bit floats")
    parser.add_argument(
        "-s", "--short", action="store_true", help="two epochs of 2,000 images: a few seconds on a laptop"
    )
    args = parser.parse_args()
    if args.short:
        args.epochs, args.train_images, args.test_images = 2, 2_000, 500
        args.batch_size, args.lr = 32, 0.002
    return args


class Network(nn.Module):
    """Two convolutions, two dense layers."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = nn.max_pool(nn.relu(nn.Conv(10, (5, 5), padding="VALID")(images)), (2, 2), (2, 2))
        x = nn.max_pool(nn.relu(nn.Conv(20, (5, 5), padding="VALID")(x)), (2, 2), (2, 2))
        x = nn.relu(nn.Dense(50)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10)(x)


def main() -> None:
    args = parse_args()
    # Farandole: join the job.
    hvd.init()

    # Farandole: every rank draws the same images and takes its part of them.
    images, labels = (array[hvd.rank() :: hvd.size()] for array in draw_arrays(args.train_images, args.seed))
    test_images, test_labels = (
        array[hvd.rank() :: hvd.size()] for array in draw_arrays(args.test_images, args.seed + 1)
    )

    network = Network()
    # Farandole: more ranks, larger steps, with the averages of all ranks' gradients.
    tx = hvd.DistributedOptimizer(
        optax.adam(args.lr * hvd.size()),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
    )
    params = network.init(jax.random.key(args.seed + hvd.rank()), images[:1])
    # Farandole: begin everywhere with the parameters of rank 0.
    params = hvd.broadcast_parameters(params, root_rank=0)
    state = tx.init(params)

    def loss_of(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(network.apply(params, images), labels).mean()

    # Farandole: as jax.jit; a program with collectives is dispatched sooner.
    @hvd.jit
    def train_step(params: Any, state: Any, images: jax.Array, labels: jax.Array) -> tuple[Any, Any, jax.Array]:
        loss, grads = jax.value_and_grad(loss_of)(params, images, labels)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    @jax.jit
    def count_right(params: Any, images: jax.Array, labels: jax.Array) -> Any:
        right = (network.apply(params, images).argmax(-1) == labels).sum()
        # Farandole: of all ranks' images.
        return hvd.psum((right, jnp.size(labels)))

    steps = len(images) // args.batch_size
    for epoch in range(1, args.epochs + 1):
        order = np.random.default_rng(args.seed + epoch).permutation(len(images))
        for step in range(steps):
            chosen = order[step * args.batch_size : (step + 1) * args.batch_size]
            params, state, loss = train_step(params, state, images[chosen], labels[chosen])
        right, count = count_right(params, test_images, test_labels)
        # Farandole: one rank speaks for all.
        if hvd.rank() == 0:
            accuracy = 100 * int(right) / int(count)
            print(f"Epoch {epoch}: loss {float(loss):.4f}, test accuracy: {accuracy:.2f}%", flush=True)


if __name__ == "__main__":
    main()
