"""A convolutional network learns to read digits with MXNet's Gluon, data-parallel.

    farandole run -np 2 python examples/python/mxnet_mnist.py

What makes a script for one process one for many is marked with "Farandole:". The digits are drawn (see digits.py), so
nothing is downloaded. Every rank trains on its part of the images; the test accuracy is that of all ranks together.
MXNet 1.9.1 needs Python 3.11 or older and NumPy 1.23 (docs/mxnet.md).
"""

from __future__ import annotations

import argparse

import mxnet as mx
from mxnet import autograd, gluon

import farandole.mxnet as hvd
from digits import draw_arrays


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("-b", "--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("-e", "--epochs", type=int, default=5, help="passes over the training images")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate of one rank")
    parser.add_argument("--momentum", type=float, default=0.9, help="momentum of SGD")
    parser.add_argument("--seed", type=int, default=42, help="seed of the images and of the model")
    parser.add_argument("--train-images", type=int, default=12_000, help="number of images to train on")
    parser.add_argument("--test-images", type=int, default=2_000, help="number of images to test with")
    parser.add_argument("--log-interval", type=int, default=10, help="steps between two lines of progress")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as 16-bit floats")
    parser.add_argument("--save", default="", metavar="FILE", help="where rank 0 saves the parameters at the end")
    parser.add_argument("--no-cuda", action="store_true", help="train on the CPU even where there is a GPU")
    parser.add_argument(
        "-s", "--short", action="store_true", help="two epochs of 2,000 images: a few seconds on a laptop"
    )
    args = parser.parse_args()
    if args.short:
        args.epochs, args.train_images, args.test_images = 2, 2_000, 500
        args.batch_size = 32
    return args


def build_net() -> gluon.nn.HybridSequential:
    """Two convolutions, two dense layers. The shapes of the weights are found in the first forward pass."""
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(10, 5, activation="relu"),
        gluon.nn.MaxPool2D(2),
        gluon.nn.Conv2D(20, 5, activation="relu"),
        gluon.nn.MaxPool2D(2),
        gluon.nn.Dense(50, activation="relu"),
        gluon.nn.Dense(10),
    )
    return net


def draw_part(count: int, seed: int) -> gluon.data.ArrayDataset:
    images, labels = draw_arrays(count, seed)
    # Farandole: every rank draws the same images and takes its part of them.
    part = slice(hvd.rank(), None, hvd.size())
    return gluon.data.ArrayDataset(images[part].transpose(0, 3, 1, 2), labels[part].astype("float32"))


def main() -> None:
    args = parse_args()
    # Farandole: join the job.
    hvd.init()
    # Farandole: one GPU for each rank of a host; where ranks share them, each in turn.
    gpus = 0 if args.no_cuda else mx.context.num_gpus()
    device = mx.gpu(hvd.local_rank() % gpus) if gpus else mx.cpu()
    mx.random.seed(args.seed)

    train_images = gluon.data.DataLoader(
        draw_part(args.train_images, args.seed), args.batch_size, shuffle=True, last_batch="discard"
    )
    test_images = gluon.data.DataLoader(draw_part(args.test_images, args.seed + 1), args.batch_size)

    net = build_net()
    net.initialize(mx.init.Xavier(), ctx=device)
    net.hybridize()
    # Farandole: go on everywhere with the parameters of rank 0, as soon as they are there.
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    # Farandole: the trainer averages gradients over all ranks. More ranks, larger steps.
    trainer = hvd.DistributedTrainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": args.lr * hvd.size(), "momentum": args.momentum},
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
    )
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    for epoch in range(1, args.epochs + 1):
        for step, (images, labels) in enumerate(train_images):
            images, labels = images.as_in_context(device), labels.as_in_context(device)
            with autograd.record():
                loss = loss_of(net(images), labels)
            loss.backward()
            trainer.step(args.batch_size)
            # Farandole: one rank speaks for all.
            if step % args.log_interval == 0 and hvd.rank() == 0:
                print(f"Epoch {epoch}, step #{step}\tLoss: {loss.mean().asscalar():.6f}", flush=True)
        right = mx.nd.zeros((1,), ctx=device)
        for images, labels in test_images:
            answers = net(images.as_in_context(device)).argmax(axis=1)
            right += (answers == labels.as_in_context(device)).sum()
        # Farandole: add up what the ranks counted.
        right = hvd.allreduce(right, name="right", op=hvd.Sum)
        if hvd.rank() == 0:
            print(f"Epoch {epoch}: Test accuracy: {100 * right.asscalar() / args.test_images:.2f}%", flush=True)

    # Farandole: only one rank writes.
    if args.save and hvd.rank() == 0:
        net.save_parameters(args.save)


if __name__ == "__main__":
    main()
