"""Reducing gradients in PyTorch: Farandole beside its peers, in one run.

``python bindings/python/benchmarks/torch_peers.py`` (`cargo xtask torch-bench` builds what it needs and runs it) starts
the processes of every contestant (`torch_contestant.py`), two ranks each, and gives them turns of a few iterations, so
that whatever else the machine does hits all alike. Whoever does not have its turn waits for a line on a socket;
Horovod's processes, whose thread wakes up every millisecond even then, are stopped meanwhile. An iteration lasts from
when the last rank begins until the last rank ends; what is printed is the median over all iterations of all rounds, and
beside it the median of the processor time that all threads of all ranks took.

- `farandole`: `DistributedOptimizer`, or `farandole.torch`'s operations.
- `ddp`: torch's `DistributedDataParallel` over gloo as it is by default, or `torch.distributed`'s operations (`gloo`).
- `ddp backend`: the same with our backend of `torch.distributed` in gloo's place (`backend` by operations).
- `ddp hook`: over gloo, with `farandole.torch.ddp_comm_hook` for the gradients.
- `… tuned`: with `gradient_as_bucket_view` and `static_graph`, which save DDP copies and look-ups.
- `horovod`: the real one, where it is installed, under `mpirun`.
- `nothing`: the same work without communication.

Three workloads: a thousand tensors of 1 KB; ResNet-50's 161 gradients, 102 MB; training steps of a ResNet. In the first
two backward hands out gradients that were made beforehand, so that nothing is measured but their way. In the third the
figure is the *overhead*: step time with communication over step time without. Their rows "by operations" have no
optimizer: tensors are reduced in place by the calls that each side offers for several at once, and for one at a time.

``--busy N`` keeps N cores busy meanwhile, beside all contestants: what waking up and taking turns cost where cores are
taken.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

RANKS = 2

#: Iterations in a row of one contestant. Orders and buckets are learned anew by nobody within a row, and the first of a
#: row is not counted: it finds the caches full of the contestant before.
ITERATIONS_IN_A_ROW = 6

#: No answer takes longer than this, in seconds: on busy cores it takes half a minute until all have PyTorch loaded.
DEADLINE = 240.0

CONTESTANT = Path(__file__).with_name("torch_contestant.py")

#: Who reduces by operations, and what it is called then.
OPERATIONS = {"farandole": "farandole", "ddp": "gloo", "ddp backend": "backend", "horovod": "horovod"}


class Iteration(NamedTuple):
    """What one iteration took, in seconds: on the wall, and of all processors."""

    wall: float
    processor: float


@dataclass
class Rank:
    """The line to one process of a contestant."""

    line: socket.socket
    answers: IO[str]

    def ask(self, request: dict[str, Any]) -> None:
        self.line.sendall(json.dumps(request).encode() + b"\n")

    def answer(self, name: str) -> dict[str, Any]:
        line = self.answers.readline()
        if not line:
            raise SystemExit(f"a process of {name} has ended; what it said is above")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass
class Contestant:
    """The processes of one that takes part."""

    name: str
    started: list[subprocess.Popen[bytes]]
    #: Processes that are stopped while others have their turn.
    stopped: list[int] = field(default_factory=list)
    ranks: list[Rank] = field(default_factory=list)

    def ask(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        for rank in self.ranks:
            rank.ask(request)
        return [rank.answer(self.name) for rank in self.ranks]

    def iterate(self) -> Iteration:
        answers = self.ask({"iterate": True})
        begun, ended = (max(answer[moment] for answer in answers) for moment in ("begun", "ended"))
        return Iteration(ended - begun, sum(answer["processor"] for answer in answers))

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        self.signal(signal.SIGCONT)
        yield
        self.signal(signal.SIGSTOP)

    def signal(self, which: signal.Signals) -> None:
        for pid in self.stopped:
            os.kill(pid, which)


def real_horovod() -> bool:
    """Whether Horovod itself is installed: our alias does not count."""
    found = importlib.util.find_spec("horovod")
    return found is not None and found.origin is not None and any(Path(found.origin).parent.glob("torch/mpi_lib_v2*"))


def names_of_contestants() -> list[str]:
    ddp = [f"ddp{way}{tuned}" for tuned in ("", " tuned") for way in ("", " backend", " hook")]
    return ["nothing", "farandole", *ddp, *(["horovod"] if real_horovod() else [])]


def start(name: str, folder: Path) -> Contestant:
    """Starts the ranks of a contestant: ours by our launcher, Horovod's by `mpirun`, and the others as they are."""
    program = [sys.executable, str(CONTESTANT), name, str(folder)]

    def popen(words: list[str], **more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(words, env={**os.environ, **more}, stdin=subprocess.DEVNULL, start_new_session=True)

    if name == "farandole":
        command = os.environ.get("FARANDOLE_COMMAND") or shutil.which("farandole")
        if command is None:
            raise SystemExit("there is no command farandole: FARANDOLE_COMMAND names it")
        return Contestant(name, [popen([command, "run", "-np", str(RANKS), *program])])
    if name == "horovod":
        launcher = popen(["mpirun", "-np", str(RANKS), "--oversubscribe", *program], OMPI_ALLOW_RUN_AS_ROOT="1",
                         OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        return Contestant(name, [launcher])
    own = [popen(program, CONTESTANT_RANK=str(rank), CONTESTANT_RANKS=str(RANKS)) for rank in range(RANKS)]
    return Contestant(name, own)


@contextlib.contextmanager
def contestants(names: list[str]) -> Iterator[dict[str, Contestant]]:
    """Starts all, and waits until all their ranks have said who they are."""
    with contextlib.ExitStack() as leaving:
        folder = Path(leaving.enter_context(tempfile.TemporaryDirectory(prefix="torch-peers-")))
        listener = leaving.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(folder / "socket"))
        listener.listen()
        listener.settimeout(DEADLINE)
        everybody = {name: start(name, folder) for name in names}
        leaving.callback(end, list(everybody.values()))
        for _ in range(RANKS * len(names)):
            line, _ = listener.accept()
            line.settimeout(DEADLINE)
            pid = int.from_bytes(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
            rank = Rank(line, line.makefile("r"))
            contestant = everybody[rank.answer("somebody")["name"]]
            contestant.ranks.append(rank)
            if contestant.name == "horovod":
                contestant.stopped.append(pid)
        yield everybody


def end(everybody: list[Contestant]) -> None:
    """A process ends when its line does; whatever launched it ends after it."""
    for contestant in everybody:
        contestant.signal(signal.SIGCONT)
        for rank in contestant.ranks:
            rank.line.shutdown(socket.SHUT_RDWR)
    until = time.monotonic() + 10
    for process in (process for contestant in everybody for process in contestant.started):
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def measure(taking_part: list[Contestant], workload: str, words: argparse.Namespace) -> dict[str, list[Iteration]]:
    """All iterations that count. Stops early when time is up."""
    for contestant in taking_part:
        with contestant.turn():
            contestant.ask({"build": workload, "batch": words.batch, "image": words.image})
    times: dict[str, list[Iteration]] = {contestant.name: [] for contestant in taking_part}
    until = time.monotonic() + words.seconds
    for number in range(words.rounds):
        for contestant in taking_part:
            with contestant.turn():
                row = [contestant.iterate() for _ in range(ITERATIONS_IN_A_ROW)]
            times[contestant.name] += row[1:]
        if number > 0 and time.monotonic() > until:
            break
    return times


def report(title: str, times: dict[str, list[Iteration]], overhead: bool) -> bool:
    """Prints one workload. Returns whether our optimizer, or our operations, are the lowest."""
    medians = {name: statistics.median(iteration.wall for iteration in times[name]) for name in times}
    base = medians["farandole"]
    print(f"\n{title}")
    heading = f"  {'':<18}{'iterations':>11}{'median ms':>11}{'p10':>9}{'p90':>9}{'ratio':>8}{'processor ms':>14}"
    print(heading + (f"{'overhead':>10}" if overhead else ""))
    for name, iterations in times.items():
        values, used = zip(*iterations, strict=True)
        deciles = statistics.quantiles(values, n=10)
        ratio = f"{medians[name] / base:>8.2f}" if name != "nothing" else f"{'':>8}"
        row = f"  {name:<18}{len(values):>11}{1e3 * medians[name]:>11.3f}{1e3 * deciles[0]:>9.3f}"
        row += f"{1e3 * deciles[-1]:>9.3f}{ratio}"
        row += f"{1e3 * statistics.median(used):>14.3f}"
        print(row + (f"{medians[name] / medians['nothing']:>10.3f}" if overhead else ""), flush=True)
    others = [name for name in medians if name != "nothing" and not is_ours(name)]
    return all(base <= medians[name] for name in others)


def is_ours(name: str) -> bool:
    """Whether this contestant's gradients go through our engine."""
    return any(word in name for word in ("farandole", "backend", "hook"))


#: Computes until the process that started it is gone.
COMPUTE = "import os; p = os.getppid()\nwhile os.getppid() == p:\n    for _ in range(1000000): pass"


@contextlib.contextmanager
def busy(cores: int) -> Iterator[None]:
    """Keeps so many cores busy."""
    neighbours = [subprocess.Popen([sys.executable, "-c", COMPUTE]) for _ in range(cores)]
    try:
        yield
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()


def read_words() -> argparse.Namespace:
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--rounds", type=int, default=40, help="rounds of each workload, at most")
    words.add_argument("--seconds", type=float, default=12.0, help="time for each workload, about")
    words.add_argument("--only", default="", help="workloads whose title contains this")
    words.add_argument("--image", type=int, default=64, help="height and width of an image")
    words.add_argument("--batch", type=int, default=8, help="images of each rank in a step")
    words.add_argument(
        "--busy", type=int, default=0, metavar="CORES", help="keep so many cores busy beside the contestants"
    )
    words.add_argument("--check", action="store_true", help="fail if ours is not the lowest everywhere")
    return words.parse_args()


def main() -> int:
    words = read_words()
    names = names_of_contestants()
    step = f"{words.batch} images of {words.image}x{words.image} for each rank"
    workloads = {
        "backward small": "1,000 tensors of 1 KB, by backward and optimizer",
        "together small": "1,000 tensors of 1 KB, by operations, together",
        "single small": "1,000 tensors of 1 KB, by operations, one by one",
        "backward large": "ResNet-50's 161 gradients, 102 MB, by backward and optimizer",
        "together large": "ResNet-50's 161 gradients, 102 MB, by operations, together",
        "training resnet18": f"training step, ResNet-18, {step}",
        "training resnet50": f"training step, ResNet-50, {step}",
    }
    print(
        f"{RANKS} ranks, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, "
        f"torch {importlib.metadata.version('torch')}, float32; "
        f"horovod: {'there' if 'horovod' in names else 'not installed'}; busy cores beside: {words.busy}",
        flush=True,
    )
    lowest = True
    with contestants(names) as everybody, busy(words.busy):
        for workload, title in workloads.items():
            if words.only not in title:
                continue
            by_operations = workload.startswith(("together", "single"))
            taking_part = [everybody[name] for name in names if name in OPERATIONS or not by_operations]
            times = measure(taking_part, workload, words)
            if by_operations:
                times = {OPERATIONS[name]: values for name, values in times.items()}
            lowest &= report(title, times, workload.startswith("training"))
    if not lowest:
        print("\nfarandole is not the lowest everywhere")
    return int(words.check and not lowest)


if __name__ == "__main__":
    sys.exit(main())
