"""How many images a second a residual network learns from, on random images.

    farandole run -np 2 python examples/python/pytorch_synthetic_benchmark.py --batch-size 8

Flags and output are those of Horovod's benchmark of this name, so that figures can be compared and scripts that read
them keep working. Models are in resnet.py. The images stay the same in every step; nothing is read or augmented.
"""

from __future__ import annotations

import argparse
import statistics
import timeit

import torch
import torch.nn.functional as F

import farandole.torch as hvd
import resnet


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="PyTorch Synthetic Benchmark", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as 16-bit floats")
    parser.add_argument("-m", "--model", default="resnet50", choices=resnet.MODELS, help="model to train")
    parser.add_argument("-b", "--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("-w", "--num-warmup-batches", type=int, default=10, help="steps before the clock starts")
    parser.add_argument("--num-batches-per-iter", type=int, default=10, help="steps in one iteration of the benchmark")
    parser.add_argument("-n", "--num-iters", type=int, default=10, help="iterations of the benchmark")
    parser.add_argument("--no-cuda", action="store_true", help="train on the CPU even where there is a GPU")
    parser.add_argument("--use-adasum", action="store_true", help="combine gradients with Adasum")
    parser.add_argument("--image-size", type=int, default=224, help="height and width of the images")
    parser.add_argument(
        "-s", "--short", action="store_true", help="ResNet-18, four images of 64 by 64, two short iterations"
    )
    args = parser.parse_args()
    if args.short:
        args.model, args.batch_size, args.image_size = "resnet18", 4, 64
        args.num_warmup_batches, args.num_batches_per_iter, args.num_iters = 1, 2, 2
    return args


def log(line: str) -> None:
    if hvd.rank() == 0:
        print(line, flush=True)


def main() -> None:
    args = parse_args()
    hvd.init()
    on_gpu = torch.cuda.is_available() and not args.no_cuda
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    device_name = "GPU" if on_gpu else "CPU"
    if on_gpu:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True

    model = resnet.MODELS[args.model]().to(device)
    # Adasum needs no larger learning rate for more ranks.
    lr = 0.01 * (1 if args.use_adasum else hvd.size())
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    images = torch.randn(args.batch_size, 3, args.image_size, args.image_size, device=device)
    labels = torch.randint(1000, (args.batch_size,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    def timed(steps: int) -> float:
        """Seconds for this many steps; a GPU works behind our back, so wait for it."""

        def run() -> None:
            for _ in range(steps):
                step()
            if on_gpu:
                torch.cuda.synchronize()

        return timeit.timeit(run, number=1)

    log(f"Model: {args.model}")
    log(f"Batch size: {args.batch_size}")
    log(f"Number of {device_name}s: {hvd.size()}")
    log("Running warmup...")
    timed(args.num_warmup_batches)

    log("Running benchmark...")
    rates = []
    for iteration in range(args.num_iters):
        seconds = timed(args.num_batches_per_iter)
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
