r"""How many images a second six well-known networks learn from: tf_cnn_benchmarks, as far as it was run with Horovod.

    farandole run -np 2 python examples/python/tensorflow_benchmark.py --model vgg16 --batch-size 32
    farandole study weak --ranks 1,2 --batch 32 \
        --command 'python examples/python/tensorflow_benchmark.py --batch-size {batch}'

Flags and output are those of tf_cnn_benchmarks (`--batch_size` and `--batch-size` are the same), so that figures can be
compared and scripts that read them keep working. Differences: rank 0 alone prints, where there every rank does; images
are random ones and stay the same in every step; the loop is a `tf.function` and no session. In the lines of steps
images/sec are those of one rank, in the last line those of all. Under `farandole study` there are lines for it, too.
Models are in image_models.py.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import numpy
import tensorflow as tf

import farandole.tensorflow as hvd
from image_models import MODELS

#: Other names of the same models.
ALIASES = {"inceptionv3": "inception3", "mobilenetv2": "mobilenet", "mobilenet_v2": "mobilenet"}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )

    def flag(name: str, **options: object) -> None:
        parser.add_argument(f"--{name}", f"--{name.replace('-', '_')}", **options)

    flag("model", default="resnet50", choices=[*MODELS, *ALIASES], help="model to train")
    flag("batch-size", type=int, default=32, help="images per rank and step")
    flag("num-batches", type=int, default=100, help="steps that are timed")
    flag("num-warmup-batches", type=int, default=10, help="steps before the clock starts")
    flag("display-every", type=int, default=10, help="steps between two lines")
    flag("image-size", type=int, default=0, help="height and width of the images; 0: those of the model")
    flag("optimizer", default="sgd", choices=["sgd", "momentum", "rmsprop", "adam"], help="how weights are changed")
    flag("init-learning-rate", type=float, default=0.005, help="learning rate")
    flag("variable-update", default="horovod", choices=["horovod"], help="how ranks keep the same variables")
    flag("device", default="", choices=["cpu", "gpu"], help="where to train; without it on a GPU if there is one")
    flag("data-format", default="NHWC", choices=["NHWC"], help="layout of the images")
    flag("num-gpus", type=int, default=1, choices=[1], help="GPUs of one rank")
    flag("num-intra-threads", type=int, default=0, help="threads within an operation; 0: TensorFlow decides")
    flag("num-inter-threads", type=int, default=0, help="operations at the same time; 0: TensorFlow decides")
    flag("use-fp16", action="store_true", help="compute in 16-bit floats, with variables of 32 bits")
    flag("fp16-allreduce", action="store_true", help="send gradients as 16-bit floats")
    flag("xla-compile", action="store_true", help="compile the step with XLA")
    flag("forward-only", action="store_true", help="no gradients: inference")
    parser.add_argument(
        "-s", "--short", action="store_true", help="six steps of two images of 75 by 75 or, AlexNet, 99 by 99"
    )
    args = parser.parse_args()
    args.model = ALIASES.get(args.model, args.model)
    if args.short:
        args.batch_size, args.num_batches, args.num_warmup_batches, args.display_every = 2, 6, 1, 2
        args.image_size = 99 if args.model == "alexnet" else 75
    args.image_size = args.image_size or MODELS[args.model].side
    return args


def log(line: str) -> None:
    if hvd.rank() == 0:
        print(line, flush=True)


def prepare(args: argparse.Namespace) -> None:
    """Threads, precision, and one GPU for each rank of a host."""
    tf.config.threading.set_intra_op_parallelism_threads(args.num_intra_threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.num_inter_threads)
    gpus = tf.config.list_physical_devices("GPU")
    if args.device == "gpu" and not gpus:
        raise SystemExit("--device=gpu: TensorFlow finds no GPU here")
    args.device = "gpu" if gpus and args.device != "cpu" else "cpu"
    chosen = [gpus[hvd.local_rank() % len(gpus)]] if args.device == "gpu" else []
    for gpu in chosen:
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.set_visible_devices(chosen, "GPU")
    if args.use_fp16:
        tf.keras.mixed_precision.set_global_policy("mixed_float16")


def print_info(args: argparse.Namespace) -> None:
    log(f"TensorFlow:  {'.'.join(tf.__version__.split('.')[:2])}")
    log(f"Model:       {args.model}")
    log("Dataset:     imagenet (synthetic)")
    log(f"Mode:        {'forward-only' if args.forward_only else 'training'}")
    log("SingleSess:  False")
    log(f"Batch size:  {args.batch_size * hvd.size()} global")
    log(f"             {args.batch_size} per device")
    log(f"Num batches: {args.num_batches}")
    # Of the 1,281,167 images of ImageNet.
    log(f"Num epochs:  {args.num_batches * args.batch_size * hvd.size() / 1_281_167:.2f}")
    log(f"Devices:     {[f'horovod/{args.device}:{rank}' for rank in range(hvd.size())]}")
    log("NUMA bind:   False")
    log(f"Data format: {args.data_format}")
    log(f"Optimizer:   {args.optimizer}")
    log(f"Variables:   {args.variable_update}")
    log("==========")


def make_step(args: argparse.Namespace) -> Callable[[], tf.Tensor]:
    """A function that makes one step and returns its loss; variables are those of rank 0."""
    side = args.image_size
    model = MODELS[args.model].build(side, 1000)
    rate = args.init_learning_rate
    optimizers = tf.keras.optimizers
    optimizer = {
        "sgd": lambda: optimizers.SGD(rate),
        "momentum": lambda: optimizers.SGD(rate, momentum=0.9),
        "rmsprop": lambda: optimizers.RMSprop(rate, rho=0.9, momentum=0.9, epsilon=1.0),
        "adam": lambda: optimizers.Adam(rate),
    }[args.optimizer]()
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    images = tf.random.truncated_normal([args.batch_size, side, side, 3], stddev=0.3, seed=hvd.rank())
    labels = tf.random.uniform([args.batch_size], maxval=1000, dtype=tf.int64, seed=hvd.rank())

    @tf.function(jit_compile=args.xla_compile or None)
    def forward() -> tf.Tensor:
        return loss_of(labels, model(images, training=False))

    @tf.function(jit_compile=args.xla_compile or None)
    def train() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables, root_rank=0)
    hvd.broadcast_variables(optimizer.variables, root_rank=0)
    return forward if args.forward_only else train


def speed(batch_size: int, seconds: list[float]) -> str:
    """Mean, its uncertainty, and a robust deviation, as tf_cnn_benchmarks has them."""
    speeds = batch_size / numpy.array(seconds)
    uncertainty = numpy.std(speeds) / numpy.sqrt(len(speeds))
    # The factor makes it the standard deviation where speeds are normally distributed.
    jitter = 1.4826 * numpy.median(numpy.abs(speeds - numpy.median(speeds)))
    mean = batch_size / numpy.mean(seconds)
    return f"images/sec: {mean:.1f} +/- {uncertainty:.1f} (jitter = {jitter:.1f})"


def main() -> None:
    args = parse_args()
    hvd.init()
    prepare(args)
    print_info(args)
    log("Generating training model" if not args.forward_only else "Generating forward-only model")
    step = make_step(args)
    log("Running warm up")
    for _ in range(max(1, args.num_warmup_batches)):  # The first makes the graph.
        step()

    log("Done warm up")
    log("Step\tImg/sec\ttotal_loss")
    seconds: list[float] = []
    shown = 0
    for number in range(1, args.num_batches + 1):
        begun = time.perf_counter()
        loss = float(step())
        seconds.append(time.perf_counter() - begun)
        if number == 1 or number % args.display_every == 0:
            log(f"{number}\t{speed(args.batch_size, seconds)}\t{loss:.3f}")
            if "FARANDOLE_STUDY_RANKS" in os.environ:
                stretch = seconds[shown:]
                log(f"throughput: {hvd.size() * args.batch_size * len(stretch) / sum(stretch):.2f} images/s")
                shown = number
    log("-" * 64)
    log(f"total images/sec: {hvd.size() * args.batch_size * args.num_batches / sum(seconds):.2f}")
    log("-" * 64)


if __name__ == "__main__":
    main()
