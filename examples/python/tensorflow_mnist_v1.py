"""A convolutional network learns to read digits with a graph and a session of `tf.compat.v1`, data-parallel.

    farandole run -np 2 python examples/python/tensorflow_mnist_v1.py

For scripts from the time of TensorFlow 1: placeholders, `MonitoredTrainingSession` and its hooks. What makes a script
for one process one for many is marked with "Farandole:". The digits are drawn (see digits.py), so nothing is
downloaded. Every rank trains on its part of the images; the test accuracy is that of all ranks together.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy
import tensorflow.compat.v1 as tf

import farandole.tensorflow as hvd
from digits import draw_arrays


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("-b", "--batch-size", type=int, default=100, help="images per rank and step")
    parser.add_argument("-n", "--steps", type=int, default=400, help="steps of one rank; several ranks share them")
    parser.add_argument("--lr", type=float, default=0.001, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=42, help="seed of the images and of the model")
    parser.add_argument("--train-images", type=int, default=12_000, help="number of images to train on")
    parser.add_argument("--test-images", type=int, default=2_000, help="number of images to test with")
    parser.add_argument("--log-interval", type=int, default=10, help="steps between two lines of progress")
    parser.add_argument("--use-adasum", action="store_true", help="combine gradients with Adasum")
    parser.add_argument("--checkpoint", default="", metavar="FOLDER", help="where rank 0 keeps checkpoints")
    parser.add_argument("--no-cuda", action="store_true", help="train on the CPU even where there is a GPU")
    parser.add_argument(
        "-s", "--short", action="store_true", help="150 steps on 2,000 images: a few seconds on a laptop"
    )
    args = parser.parse_args()
    if args.short:
        args.steps, args.train_images, args.test_images = 150, 2_000, 500
        args.batch_size, args.lr = 32, 0.002
    return args


def layer(inputs: tf.Tensor, name: str, shape: list[int]) -> tf.Tensor:
    """A convolution with pooling, or a dense layer, after the number of dimensions."""
    with tf.variable_scope(name):
        weight = tf.get_variable("weight", shape, initializer=tf.keras.initializers.he_normal())
        bias = tf.get_variable("bias", shape[-1:], initializer=tf.zeros_initializer())
    if len(shape) == 2:
        return tf.matmul(inputs, weight) + bias
    return tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(inputs, weight, 1, "VALID") + bias), 2, 2, "VALID")


def network(images: tf.Tensor) -> tf.Tensor:
    """Two convolutions, two dense layers."""
    hidden = layer(images, "conv1", [5, 5, 1, 10])
    hidden = layer(hidden, "conv2", [5, 5, 10, 20])
    hidden = tf.nn.relu(layer(tf.reshape(hidden, [-1, 320]), "dense1", [320, 50]))
    return layer(hidden, "dense2", [50, 10])


def batches(
    images: numpy.ndarray, labels: numpy.ndarray, size: int, seed: int
) -> Iterator[tuple[numpy.ndarray, numpy.ndarray]]:
    """Without end, in another order each time."""
    chance = numpy.random.default_rng(seed)
    while True:
        order = chance.permutation(len(labels))
        for begin in range(0, len(order) - size + 1, size):
            chosen = order[begin : begin + size]
            yield images[chosen], labels[chosen]


def main() -> None:
    args = parse_args()
    tf.disable_eager_execution()
    # Farandole: join the job.
    hvd.init()
    tf.set_random_seed(args.seed)

    images = tf.placeholder(tf.float32, [None, 28, 28, 1], name="images")
    labels = tf.placeholder(tf.int64, [None], name="labels")
    answers = network(images)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=answers))
    right = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(answers, 1), labels), tf.float32))
    # Farandole: add up what the ranks counted.
    right_everywhere = hvd.allreduce(right, name="right", op=hvd.Sum)

    # Farandole: more ranks, larger steps. Adasum needs no such scaling.
    optimizer = tf.train.AdamOptimizer(args.lr * (1 if args.use_adasum else hvd.size()))
    # Farandole: combine the gradients of all ranks in every step.
    optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Adasum if args.use_adasum else hvd.Average)
    global_step = tf.train.get_or_create_global_step()
    train = optimizer.minimize(loss, global_step=global_step)

    hooks = [
        # Farandole: begin everywhere with the variables of rank 0, initialized or restored.
        hvd.BroadcastGlobalVariablesHook(0),
    ]
    config = tf.ConfigProto()
    config.gpu_options.allow_growth = True
    # Farandole: one GPU for each rank of a host; where ranks share them, each in turn.
    gpus = 0 if args.no_cuda else len(tf.config.experimental.list_physical_devices("GPU"))
    config.gpu_options.visible_device_list = str(hvd.local_rank() % gpus) if gpus else ""
    if not gpus:
        config.device_count["GPU"] = 0

    # Farandole: every rank draws the same images and takes its part of them.
    own, tests = (
        [array[hvd.rank() :: hvd.size()] for array in draw_arrays(count, seed)]
        for count, seed in [(args.train_images, args.seed), (args.test_images, args.seed + 1)]
    )
    source = batches(*own, args.batch_size, args.seed + hvd.rank())
    # Farandole: only one rank writes checkpoints.
    folder = args.checkpoint if args.checkpoint and hvd.rank() == 0 else None
    with tf.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks, config=config) as session:
        # Farandole: ranks share the steps.
        for number in range(args.steps // hvd.size()):
            batch, classes = next(source)
            _, now = session.run([train, loss], {images: batch, labels: classes})
            # Farandole: one rank speaks for all.
            if number % args.log_interval == 0 and hvd.rank() == 0:
                print(f"Step #{number}\tLoss: {now:.6f}", flush=True)
        count = session.run(right_everywhere, {images: tests[0], labels: tests[1]})
    if hvd.rank() == 0:
        print(f"Test accuracy: {100 * count / args.test_images:.2f}%", flush=True)


if __name__ == "__main__":
    main()
