"""A convolutional network learns to read digits with Keras 3 and `fit`, data-parallel, on any backend.

    farandole run -np 2 python examples/python/keras_mnist.py
    KERAS_BACKEND=torch farandole run -np 2 python examples/python/keras_mnist.py

What makes a script for one process one for many is marked with "Farandole:". The digits are drawn (see digits.py), so
nothing is downloaded. Every rank trains on its part of the images; metrics are averages over all ranks. Keras chooses
its backend by `KERAS_BACKEND` or its own file of settings.
"""

from __future__ import annotations

import argparse
import os

import keras

import farandole.keras as hvd
from digits import draw_arrays


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("-b", "--batch-size", type=int, default=128, help="images per rank and step")
    parser.add_argument("-e", "--epochs", type=int, default=5, help="passes over the training images")
    parser.add_argument("--lr", type=float, default=0.001, help="learning rate of one rank")
    parser.add_argument(
        "--warmup-epochs", type=int, default=1, help="epochs until the learning rate is that of all ranks"
    )
    parser.add_argument("--seed", type=int, default=42, help="seed of the images and of the model")
    parser.add_argument("--train-images", type=int, default=12_000, help="number of images to train on")
    parser.add_argument("--test-images", type=int, default=2_000, help="number of images to test with")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as 16-bit floats")
    parser.add_argument("--checkpoint", default="", metavar="FILE", help="where rank 0 saves the model, as FILE.keras")
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
    """Farandole: one GPU for each rank of a host. All backends look at this variable when they first use a GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if no_cuda:
        visible = ""
    elif visible:
        gpus = visible.split(",")
        visible = gpus[hvd.local_rank() % len(gpus)]
    os.environ["CUDA_VISIBLE_DEVICES"] = str(hvd.local_rank()) if visible is None else visible


def build_model() -> keras.Model:
    """Two convolutions, two dense layers."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
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
    keras.utils.set_random_seed(args.seed)

    # Farandole: every rank draws the same images and takes its part of them.
    images, labels = (array[hvd.rank() :: hvd.size()] for array in draw_arrays(args.train_images, args.seed))
    tests = tuple(array[hvd.rank() :: hvd.size()] for array in draw_arrays(args.test_images, args.seed + 1))

    model = build_model()
    # Farandole: more ranks, larger steps, with the averages of all ranks' gradients.
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.Adam(args.lr * hvd.size()),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
    )
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    callbacks = [
        # Farandole: begin everywhere with the state of rank 0.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # Farandole: metrics of an epoch are averages over all ranks. Before callbacks that look at them.
        hvd.callbacks.MetricAverageCallback(),
        # Farandole: reach the learning rate of all ranks step by step.
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=args.lr * hvd.size(), warmup_epochs=args.warmup_epochs),
    ]
    # Farandole: one rank writes, and one rank speaks for all.
    if args.checkpoint and hvd.rank() == 0:
        callbacks.append(keras.callbacks.ModelCheckpoint(f"{args.checkpoint}.keras"))
    history = model.fit(
        images,
        labels,
        batch_size=args.batch_size,
        epochs=args.epochs,
        validation_data=tests,
        validation_batch_size=500,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    if hvd.rank() == 0:
        print(f"Backend: {keras.backend.backend()}")
        print(f"Test accuracy: {100 * history.history['val_accuracy'][-1]:.2f}%", flush=True)


if __name__ == "__main__":
    main()
