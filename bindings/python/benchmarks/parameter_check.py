"""What comparing the parameters of ResNet-50 over all ranks costs: in the first step, and with all bits.

    farandole run -np 2 python bindings/python/benchmarks/parameter_check.py --rounds 50
    FARANDOLE_CHECK_PARAMETERS=1 farandole run -np 2 python bindings/python/benchmarks/parameter_check.py

Without the variable a sample is compared, as before the first step; with it all bits are. Each round is the check of a
new optimizer, as the first step makes it: ranks begin together, and caches hold other data. Rank 0 prints the
milliseconds of the first round in the process and of all, and how long its thread had a processor.
"""

import argparse
import statistics
import time

import torch
from train_step import ResNet

import farandole.torch as hvd
from farandole.torch import parameter_pieces

# More than any cache.
_OTHER_DATA_BYTES = 256 << 20


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--rounds", type=int, default=50, help="how many checks are made")
    words.add_argument("--device", default="cpu", help="where the parameters are")
    asked = words.parse_args()
    hvd.init()
    torch.manual_seed(1)
    model = ResNet("resnet50", 1000).to(asked.device)
    named = list(model.named_parameters())
    other = torch.zeros(_OTHER_DATA_BYTES, dtype=torch.uint8)
    reading: list[float] = []
    original = parameter_pieces.pieces

    def timed(named, whole):
        begun = time.perf_counter()
        found = original(named, whole)
        reading.append(1e3 * (time.perf_counter() - begun))
        return found

    parameter_pieces.pieces = timed
    taken, worked = [], []
    for _ in range(asked.rounds):
        check = parameter_pieces.OptimizerCheck()
        other.add_(1)
        hvd.barrier()
        begun, worked_before = time.perf_counter(), time.thread_time()
        check.step_begins(0, lambda: named)
        taken.append(1e3 * (time.perf_counter() - begun))
        worked.append(1e3 * (time.thread_time() - worked_before))
    if hvd.rank() == 0 and not reading:
        print("nothing is compared: there is one rank, or FARANDOLE_CHECK_PARAMETERS=0")
    elif hvd.rank() == 0:
        size = sum(parameter.numel() * parameter.element_size() for _, parameter in named)
        print(
            f"{len(named)} parameters, {size / 1e6:.0f} MB, {hvd.size()} ranks: first {taken[0]:.2f} ms, "
            f"median {statistics.median(taken):.2f} ms, "
            f"90th percentile {sorted(taken)[len(taken) * 9 // 10]:.2f} ms; "
            f"median of processor time {statistics.median(worked):.2f} ms, of which "
            f"{statistics.median(reading):.2f} ms until the engine has the addresses"
        )


if __name__ == "__main__":
    main()
