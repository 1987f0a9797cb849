"""Reducing gradients in TensorFlow: Farandole beside its peers, in one run.

``python bindings/python/benchmarks/tensorflow_peers.py`` (`cargo xtask tf-bench` builds what it needs and runs it)
starts the processes of every contestant (`tensorflow_contestant.py`), two ranks each, and gives them turns of a few
iterations, so that whatever else the machine does hits all alike. A contestant has processes of its own, because
`tf.distribute` turns a process into a server of its cluster; while others have their turn they sleep. An iteration
takes as long as on its slowest rank; what is printed is the median over all iterations of all rounds. Beside it stands
the processor's time of one rank, all threads together: where others are at work on the machine, it says more than the
clock.

- `nothing`: the same work without communication.
- `farandole`: `DistributedGradientTape`, or Keras's optimizer wrapped by `DistributedOptimizer`, as they are by
  default.
- `ring`: `tf.distribute.MultiWorkerMirroredStrategy` with its ring over gRPC, which makes one tensor of all gradients
  (in a `tf.function`).
- `ring packed`: the same with packs of 16 MB, so that the first leave before the last are ready.
- `horovod`: the real one, where it is installed with TensorFlow.

Workloads: a thousand gradients of 1 KB and ResNet-50's 161 gradients, 102 MB, from `tape.gradient` to reduced, in a
`tf.function` and eagerly; steps of ResNet-50 in Keras's `fit`. In the first ones `tape.gradient` hands out gradients
that were made beforehand, so that nothing is measured but their way. In the last the figure is the *overhead*: step
time with communication over step time without. The ring has no part in it: Keras 3 cannot `fit` under
`MultiWorkerMirroredStrategy` (it makes tensors of `PerReplica` values, and fails).

Before anything is timed, all contestants must have the same sums.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RANKS = 2

#: Iterations in a row of one contestant. The first of a row is not counted: it finds the caches full of the contestant
#: before.
ITERATIONS_IN_A_ROW = 6

#: A row of iterations that take longer than this, in seconds, is half as long: some peers take seconds for what others
#: do in milliseconds.
SLOW = 0.5

#: No answer takes longer than this, in seconds: building ResNet-50 and its graph on two busy cores takes half a minute.
DEADLINE = 240.0

#: Step time with communication over step time without, in Keras's `fit`: at most this.
OVERHEAD_LIMIT = 1.10

#: Of one iteration, in seconds: on the clock, of the processor.
Times = tuple[float, float]

CONTESTANT = Path(__file__).with_name("tensorflow_contestant.py")


@dataclass
class Contestant:
    """The processes of one that takes part."""

    name: str
    processes: list[subprocess.Popen]
    streams: dict[int, Any] = field(default_factory=dict)

    def ask(self, **request: Any) -> list[Any]:
        """Sends a request to all ranks, and returns their answers."""
        words = json.dumps(request) + "\n"
        answers = []
        try:
            for stream in self.streams.values():
                stream.write(words)
                stream.flush()
            for rank in sorted(self.streams):
                line = self.streams[rank].readline()
                if not line:
                    raise ConnectionError(f"rank {rank} is gone")
                answers.append(json.loads(line))
        except OSError as cause:
            raise SystemExit(f"{self.name} did not answer {request['do']}: {cause}") from cause
        return answers

    def turn(self, iterations: int) -> list[Times]:
        """Seconds of each iteration: on the clock of its slowest rank, and of the processor, on average over ranks."""
        of_ranks = self.ask(do="turn", iterations=iterations)
        return [
            (max(clock for clock, _ in ranks), statistics.fmean(processor for _, processor in ranks))
            for ranks in zip(*of_ranks, strict=True)
        ]


def real_horovod() -> bool:
    """Whether Horovod itself is there, with TensorFlow: our alias does not count."""
    found = importlib.util.find_spec("horovod")
    if found is None or found.origin is None:
        return False
    return bool(list(Path(found.origin).parent.glob("tensorflow/mpi_lib*")))


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def start(name: str, command: str, folder: Path) -> list[subprocess.Popen]:
    """Starts the processes of a contestant."""
    (folder / f"{name}.line").write_bytes(bytes(RANKS * 64))
    words = [sys.executable, str(CONTESTANT), name, str(folder), str(RANKS)]
    if name == "farandole":
        return [subprocess.Popen([command, "run", "-np", str(RANKS), *words])]
    if name == "horovod":
        return [subprocess.Popen(["horovodrun", "-np", str(RANKS), *words])]
    workers = [f"127.0.0.1:{port}" for port in free_ports(RANKS)]
    started = []
    for rank in range(RANKS):
        more = {"CONTESTANT_RANK": str(rank)}
        if name.startswith("ring"):
            more["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})
        started.append(subprocess.Popen(words, env={**os.environ, **more}))
    return started


@contextlib.contextmanager
def contestants(names: list[str], command: str) -> Iterator[list[Contestant]]:
    """All processes of all contestants, connected; they end with the block."""
    with tempfile.TemporaryDirectory() as path, socket.socket(socket.AF_UNIX) as listener:
        folder = Path(path)
        listener.bind(str(folder / "socket"))
        listener.listen()
        listener.settimeout(1.0)
        starting: dict[str, Contestant] = {}
        try:
            for name in names:
                starting[name] = Contestant(name, start(name, command, folder))
            wait_for(starting, listener)
            yield list(starting.values())
        finally:
            processes = [process for contestant in starting.values() for process in contestant.processes]
            for process in processes:
                process.terminate()
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    # A launcher ends its ranks. A server of `tf.distribute` catches this signal.
                    process.wait(timeout=3)
                process.kill()
                process.wait()


def wait_for(starting: dict[str, Contestant], listener: socket.socket) -> None:
    """Until every rank of every contestant has connected, or one has ended."""
    until = time.monotonic() + DEADLINE
    while missing := [each.name for each in starting.values() if len(each.streams) < RANKS]:
        ended = [
            each.name for each in starting.values() if any(process.poll() is not None for process in each.processes)
        ]
        if ended or time.monotonic() > until:
            raise SystemExit(f"did not start: {', '.join(ended or missing)}")
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        connection.settimeout(DEADLINE)
        stream = connection.makefile("rw")
        hello = json.loads(stream.readline())
        starting[hello["contestant"]].streams[hello["rank"]] = stream


def compare(title: str, taking_part: list[Contestant]) -> None:
    """All contestants but the one without communication have reduced to the same."""
    results: dict[str, list[Any]] = {each.name: each.ask(do="check") for each in taking_part if each.name != "nothing"}
    wanted = results.get("farandole", next(iter(results.values())))[0]
    for name, ranks in results.items():
        for rank, values in enumerate(ranks):
            if values != wanted:
                raise SystemExit(f"{title}: rank {rank} of {name} has {values[:8]}…, ours {wanted[:8]}…")


def measure(taking_part: list[Contestant], rounds: int, seconds: float) -> dict[str, list[Times]]:
    """Seconds of single iterations. Stops early when time is up, but not before two rounds."""
    times: dict[str, list[Times]] = {each.name: [] for each in taking_part}
    rows: dict[str, int] = {}
    for each in taking_part:
        slow = min(each.turn(4))[0] > SLOW  # Orders are learned, graphs optimized.
        rows[each.name] = ITERATIONS_IN_A_ROW // 2 if slow else ITERATIONS_IN_A_ROW
    until = time.monotonic() + seconds
    for number in range(rounds):
        for each in taking_part:
            times[each.name] += each.turn(rows[each.name])[1:]
        if number > 0 and time.monotonic() > until:
            break
    return times


def report(title: str, times: dict[str, list[Times]], overhead: bool) -> list[str]:
    """Prints one workload. Returns what `--check` has to say about it."""
    medians = {name: statistics.median(clock for clock, _ in values) for name, values in times.items()}
    processor = {name: statistics.median(processor for _, processor in values) for name, values in times.items()}
    base = medians.get("farandole", 1.0)
    print(f"\n{title}")
    heading = f"  {'':<14}{'iterations':>11}{'median ms':>11}{'p10':>9}{'p90':>9}{'ratio':>8}{'processor ms':>14}"
    print(heading + (f"{'overhead':>10}" if overhead else ""))
    for name, values in times.items():
        deciles = statistics.quantiles([clock for clock, _ in values], n=10)
        ratio = f"{medians[name] / base:>8.2f}" if name != "nothing" else f"{'':>8}"
        row = f"  {name:<14}{len(values):>11}{1e3 * medians[name]:>11.3f}{1e3 * deciles[0]:>9.3f}"
        row += f"{1e3 * deciles[-1]:>9.3f}{ratio}"
        row += f"{1e3 * processor[name]:>14.3f}"
        print(row + (f"{medians[name] / medians['nothing']:>10.3f}" if overhead else ""), flush=True)
    faults = [f"{title}: {name} is faster" for name, median in medians.items() if median < base and name != "nothing"]
    if overhead and base > OVERHEAD_LIMIT * medians["nothing"]:
        faults.append(f"{title}: overhead {base / medians['nothing']:.3f} is above {OVERHEAD_LIMIT}")
    return faults


def resnet50_shapes() -> list[list[int]]:
    """Of all its trainable weights, convolutions as TensorFlow lays them out, without the biases before a
    normalisation: 161."""
    shapes = [[7, 7, 3, 64], [64], [64]]
    channels = 64
    for blocks, width in [(3, 64), (4, 128), (6, 256), (3, 512)]:
        for block in range(blocks):
            for kernel in ([1, 1, channels, width], [3, 3, width, width], [1, 1, width, 4 * width]):
                shapes += [kernel, kernel[-1:], kernel[-1:]]
            if block == 0:
                shapes += [[1, 1, channels, 4 * width], [4 * width], [4 * width]]
            channels = 4 * width
    return [*shapes, [channels, 1000], [1000]]


def read_words() -> argparse.Namespace:
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--rounds", type=int, default=40, help="rounds of each workload, at most")
    words.add_argument("--seconds", type=float, default=12.0, help="time for each workload, about")
    words.add_argument("--only", default="", help="workloads whose title contains this")
    words.add_argument("--without", default="", help="contestants to leave out, with commas between")
    words.add_argument("--image", type=int, default=64, help="height and width of an image")
    words.add_argument("--batch", type=int, default=8, help="images of each rank in a step")
    words.add_argument(
        "--command", default=os.environ.get("FARANDOLE_COMMAND", "farandole"), help="the command `farandole`"
    )
    words.add_argument(
        "--check", action="store_true", help="fail if ours is not the lowest everywhere, or the overhead is too high"
    )
    return words.parse_args()


def main() -> int:
    words = read_words()
    small, large = [[256]] * 1000, resnet50_shapes()
    left_out = words.without.split(",")
    names = ["nothing", "farandole", "ring", "ring packed", *(["horovod"] if real_horovod() else [])]
    names = [name for name in names if name not in left_out]
    # For each workload its title and what to build.
    workloads: list[tuple[str, dict[str, Any]]] = [
        ("1,000 gradients of 1 KB, in a tf.function", {"kind": "function", "shapes": small}),
        ("1,000 gradients of 1 KB, eagerly", {"kind": "eager", "shapes": small}),
        ("ResNet-50's 161 gradients, 102 MB, in a tf.function", {"kind": "function", "shapes": large}),
        ("ResNet-50's 161 gradients, 102 MB, eagerly", {"kind": "eager", "shapes": large}),
        (f"step of Keras's fit, ResNet-50, {words.batch} images of {words.image}x{words.image} for each rank",
         {"kind": "fit", "batch": words.batch, "side": words.image}),
    ]
    faults: list[str] = []
    with contestants(names, words.command) as everybody:
        print(f"{RANKS} ranks, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, float32; "
              f"horovod: {'there' if 'horovod' in names else 'not installed'}", flush=True)
        for title, building in workloads:
            if words.only in title:
                fits = building["kind"] == "fit"
                taking_part = [each for each in everybody if not (fits and each.name.startswith("ring"))]
                for each in taking_part:
                    each.ask(do="build", **building)
                if not fits:
                    compare(title, taking_part)
                faults += report(title, measure(taking_part, words.rounds, words.seconds), fits)
    for fault in faults:
        print(fault)
    return int(words.check and bool(faults))


if __name__ == "__main__":
    sys.exit(main())
