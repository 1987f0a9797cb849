"""How long a training with PyTorch stands still when a process joins: the worker of `elastic_join.py --torch`.

All members but the first kill themselves after a while, and the launcher replaces them. The first one takes the time
from the end of its last step without the new process until it can begin the first one with it.
"""

from __future__ import annotations

import argparse
import os
import signal
import time

import torch

import farandole.torch as hvd

LIFE = 8
"""Steps that a member makes before it kills itself."""

TENSORS = 24
"""Of the model."""


class Stills:
    """Counts joins, as a part of the state, and takes the time of each."""

    def __init__(self) -> None:
        self.joins, self.last = 0, 0
        self.ended = time.perf_counter()
        self.seconds: list[float] = []

    def state_dict(self) -> dict[str, int]:
        return {"joins": self.joins, "last": self.last}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.joins, self.last = state["joins"], state["last"]

    def on_change(self) -> None:
        """The policy of the training: ranks have the same state."""
        if 0 < self.last < hvd.size():
            self.joins += 1
            self.seconds.append(time.perf_counter() - self.ended)
        self.last = hvd.size()


def main() -> None:
    """Trains until so many processes have joined."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--step-ms", type=int, default=500)
    parser.add_argument("--joins", type=int, default=5)
    parser.add_argument("--streamed", action="store_true")
    options = parser.parse_args()
    hvd.init(elastic_join="later" if options.streamed else "now")
    member = int(os.environ["FARANDOLE_ELASTIC_MEMBER"])
    torch.manual_seed(member)
    # Adam has two numbers for each parameter.
    numbers = options.megabytes * 1_000_000 // 12 // TENSORS
    parameters = [torch.nn.Parameter(torch.randn(numbers)) for _ in range(TENSORS)]
    model = torch.nn.ParameterList(parameters)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(parameters), model.named_parameters())
    stills = Stills()
    training = hvd.elastic.Training(
        optimizer, model, policy=stills.on_change, streamed=options.streamed, stills=stills
    )
    training.join()
    own_steps = 0
    while stills.joins < options.joins:
        if own_steps >= LIFE and member > 0:
            os.kill(os.getpid(), signal.SIGKILL)
        own_steps += 1
        with training.step():
            optimizer.zero_grad()
            time.sleep(options.step_ms / 1000)
            sum((one * (0.1 + hvd.rank())).square().sum() for one in parameters).backward()
            optimizer.step()
            stills.ended = time.perf_counter()
    training.call(lambda: None)
    if member == 0:
        seconds = sorted(stills.seconds)
        how = "streamed" if options.streamed else "sent when the process is let in"
        print(
            f"{options.megabytes} MB, {how}: the others stood still for {1000 * seconds[len(seconds) // 2]:.0f} ms, "
            f"{1000 * seconds[-1]:.0f} ms at most, of {options.joins} joins",
            flush=True,
        )


if __name__ == "__main__":
    main()
