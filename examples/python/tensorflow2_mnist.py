"""A convolutional network learns to read digits with TensorFlow 2 and a loop of its own, data-parallel.

    farandole run -np 2 python examples/python/tensorflow2_mnist.py

What makes a script for one process one for many is marked with "Farandole:". The digits are drawn (see digits.py), so
nothing is downloaded. Every rank trains on its part of the images; the test accuracy is that of all ranks together.
"""

from __future__ import annotations

import argparse

import tensorflow as tf

import farandole.tensorflow as hvd
from digits import draw_arrays


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("-b", "--batch-size", type=int, default=128, help="images per rank and step")
    parser.add_argument("-e", "--epochs", type=int, default=5, help="passes over the training images")
    parser.add_argument("--lr", type=float, default=0.001, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=42, help="seed of the images and of the model")
    parser.add_argument("--train-images", type=int, default=12_000, help="number of images to train on")
    parser.add_argument("--test-images", type=int, default=2_000, help="number of images to test with")
    parser.add_argument("--log-interval", type=int, default=10, help="steps between two lines of progress")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as 16-bit floats")
    parser.add_argument("--checkpoint", default="", metavar="FOLDER", help="where rank 0 saves the model at the end")
    parser.add_argument("--no-cuda", action="store_true", help="train on the CPU even where there is a GPU")
    parser.add_argument(
        "-s", "--short", action="store_true", help="two epochs of 2,000 images: a few seconds on a laptop"
    )
    args = parser.parse_args()
    if args.short:
        args.epochs, args.train_images, args.test_images = 2, 2_000, 500
        args.batch_size, args.lr = 32, 0.002
    return args


def choose_gpu(no_cuda: bool) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    # Farandole: one GPU for each rank of a host.
    chosen = [gpus[hvd.local_rank() % len(gpus)]] if gpus and not no_cuda else []
    for gpu in chosen:
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.set_visible_devices(chosen, "GPU")


def build_model() -> tf.keras.Model:
    """Two convolutions, two dense layers."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            layers.Conv2D(10, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(20, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(50, activation="relu"),
            layers.Dense(10),
        ]
    )


def main() -> None:
    args = parse_args()
    # Farandole: join the job.
    hvd.init()
    choose_gpu(args.no_cuda)
    tf.keras.utils.set_random_seed(args.seed)

    # Farandole: every rank draws the same images and takes its part of them.
    images = tf.data.Dataset.from_tensor_slices(draw_arrays(args.train_images, args.seed))
    images = images.shard(hvd.size(), hvd.rank()).shuffle(10_000, args.seed).batch(args.batch_size, drop_remainder=True)
    test_images, test_labels = draw_arrays(args.test_images, args.seed + 1)
    test_images, test_labels = test_images[hvd.rank() :: hvd.size()], test_labels[hvd.rank() :: hvd.size()]

    model = build_model()
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Farandole: more ranks, larger steps.
    optimizer = tf.keras.optimizers.Adam(args.lr * hvd.size())
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none

    @tf.function
    def train(batch: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(batch, training=True))
        # Farandole: the gradients of this tape are the averages over all ranks.
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    step = 0
    for epoch in range(1, args.epochs + 1):
        for batch, labels in images:
            loss = train(batch, labels)
            if step == 0:
                # Farandole: go on everywhere with the state of rank 0. After the first step, because the optimizer has
                # its variables then.
                hvd.broadcast_variables(model.variables, root_rank=0)
                hvd.broadcast_variables(optimizer.variables, root_rank=0)
            # Farandole: one rank speaks for all.
            if step % args.log_interval == 0 and hvd.rank() == 0:
                print(f"Step #{step}\tLoss: {loss.numpy():.6f}", flush=True)
            step += 1
        answers = model(test_images, training=False)
        right = tf.reduce_sum(tf.cast(tf.argmax(answers, 1) == test_labels, tf.float32))
        # Farandole: add up what the ranks counted.
        right = hvd.allreduce(right, name="right", op=hvd.Sum)
        if hvd.rank() == 0:
            print(f"Epoch {epoch}: Test accuracy: {100 * right.numpy() / args.test_images:.2f}%", flush=True)

    # Farandole: only one rank writes, and not one that an elastic job has replaced.
    if args.checkpoint and hvd.rank() == 0:
        hvd.elastic.fence()
        tf.train.Checkpoint(model=model, optimizer=optimizer).save(f"{args.checkpoint}/mnist")


if __name__ == "__main__":
    main()
