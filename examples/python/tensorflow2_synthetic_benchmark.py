"""How many images a second a network of Keras learns from, on random images.

    farandole run -np 2 python examples/python/tensorflow2_synthetic_benchmark.py --batch-size 8

Flags and output are those of Horovod's benchmark of this name, so that figures can be compared and scripts that read
them keep working. Models are those of `keras.applications`. The images stay the same in every step; nothing is read or
augmented.
"""

from __future__ import annotations

import argparse
import statistics
import timeit

import tensorflow as tf

import farandole.tensorflow as hvd


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="TensorFlow Synthetic Benchmark", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as 16-bit floats")
    parser.add_argument("-m", "--model", default="ResNet50", help="model to train: a name of keras.applications")
    parser.add_argument("-b", "--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("-w", "--num-warmup-batches", type=int, default=10, help="steps before the clock starts")
    parser.add_argument("--num-batches-per-iter", type=int, default=10, help="steps in one iteration of the benchmark")
    parser.add_argument("-n", "--num-iters", type=int, default=10, help="iterations of the benchmark")
    parser.add_argument("--no-cuda", action="store_true", help="train on the CPU even where there is a GPU")
    parser.add_argument("--image-size", type=int, default=224, help="height and width of the images")
    parser.add_argument(
        "-s", "--short", action="store_true", help="MobileNet, four images of 64 by 64, two short iterations"
    )
    args = parser.parse_args()
    if args.short:
        args.model, args.batch_size, args.image_size = "MobileNet", 4, 64
        args.num_warmup_batches, args.num_batches_per_iter, args.num_iters = 1, 2, 2
    if not callable(getattr(tf.keras.applications, args.model, None)):
        parser.error(f"keras.applications has no model {args.model!r}")
    return args


def log(line: str) -> None:
    if hvd.rank() == 0:
        print(line, flush=True)


def choose_gpu(no_cuda: bool) -> bool:
    """One GPU for each rank of a host; whether there is one."""
    gpus = tf.config.list_physical_devices("GPU")
    chosen = [gpus[hvd.local_rank() % len(gpus)]] if gpus and not no_cuda else []
    for gpu in chosen:
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.set_visible_devices(chosen, "GPU")
    return bool(chosen)


def main() -> None:
    args = parse_args()
    hvd.init()
    device_name = "GPU" if choose_gpu(args.no_cuda) else "CPU"

    side = args.image_size
    model = getattr(tf.keras.applications, args.model)(weights=None, input_shape=(side, side, 3))
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy()
    optimizer = tf.keras.optimizers.SGD(0.01)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    images = tf.random.uniform([args.batch_size, side, side, 3])
    labels = tf.random.uniform([args.batch_size], maxval=999, dtype=tf.int64)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    log(f"Model: {args.model}")
    log(f"Batch size: {args.batch_size}")
    log(f"Number of {device_name}s: {hvd.size()}")
    log("Running warmup...")
    step()
    # After the first step, because the optimizer has its variables then.
    hvd.broadcast_variables(model.variables, root_rank=0)
    hvd.broadcast_variables(optimizer.variables, root_rank=0)
    timeit.timeit(step, number=args.num_warmup_batches)

    log("Running benchmark...")
    rates = []
    for iteration in range(args.num_iters):
        seconds = timeit.timeit(step, number=args.num_batches_per_iter)
        rate = args.batch_size * args.num_batches_per_iter / seconds
        log(f"Iter #{iteration}: {rate:.1f} img/sec per {device_name}")
        rates.append(rate)

    mean = statistics.fmean(rates)
    # Half of the interval that holds 95 % of a normal distribution.
    spread = 1.96 * statistics.pstdev(rates)
    log(f"Img/sec per {device_name}: {mean:.1f} +-{spread:.1f}")
    log(f"Total img/sec on {hvd.size()} {device_name}(s): {hvd.size() * mean:.1f} +-{hvd.size() * spread:.1f}")


if __name__ == "__main__":
    main()
