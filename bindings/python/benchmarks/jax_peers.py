"""Reducing arrays in JAX: Farandole beside JAX's own way, in one run.

``python bindings/python/benchmarks/jax_peers.py`` (`cargo xtask jax-bench` builds what it needs and runs it) starts the
processes of every contestant (`jax_contestant.py`), two ranks each, and gives them turns of a few iterations, so that
whatever else the machine does hits all alike. Figures and columns are those of `tensorflow_peers.py`.

- `nothing`: the same program without communication.
- `farandole`: `hvd.allreduce` of a tree under `jax.jit`, in the order of the program, as it is by default.
- `jit`: the same under `hvd.jit`, in order as well, and dispatched from C++.
- `by name`: the first with `ordered=False`, which lets JAX dispatch the program from C++.
- `gloo`: `lax.psum` under `shard_map` over the processes of `jax.distributed`, with JAX's gloo collectives.

Workloads: a thousand arrays of 1 KB that go into a program which returns one small result, so that handing out a
thousand arrays is no part of the time (without gloo: XLA leaves out those of its own collectives whose results nobody
uses); the same with all results; ResNet-50's 161 gradients, 102 MB, with all results. Before anything is timed, all
contestants must have the same sums.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorflow_peers import RANKS, Contestant, compare, free_ports, measure, report, resnet50_shapes, wait_for

CONTESTANT = Path(__file__).with_name("jax_contestant.py")

OURS = ["farandole", "jit", "by name"]

NAMES = ["nothing", *OURS, "gloo"]

#: The promise: a thousand small arrays in one call, with one result, take at most this, in seconds, dispatched from
#: C++ (`FAST`).
THOUSAND_LIMIT = 0.003

FAST = ["jit", "by name"]


def start(name: str, command: str, folder: Path) -> list[subprocess.Popen]:
    """Starts the processes of a contestant."""
    (folder / f"{name}.line").write_bytes(bytes(RANKS * 64))
    words = [sys.executable, str(CONTESTANT), name, str(folder), str(RANKS)]
    if name in OURS:
        return [subprocess.Popen([command, "run", "-np", str(RANKS), *words])]
    [port] = free_ports(1)
    return [
        subprocess.Popen(
            words, env={**os.environ, "CONTESTANT_RANK": str(rank), "CONTESTANT_ADDRESS": f"127.0.0.1:{port}"}
        )
        for rank in range(RANKS)
    ]


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
            for process in [process for each in starting.values() for process in each.processes]:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    # A launcher ends its ranks.
                    process.wait(timeout=3)
                process.kill()
                process.wait()


def above_limit(title: str, times: dict[str, list[Any]]) -> list[str]:
    """Who does not keep the promise."""
    medians = {name: statistics.median(clock for clock, _ in times[name]) for name in FAST if name in times}
    limit = f"{1e3 * THOUSAND_LIMIT:.0f} ms"
    return [
        f"{title}: {name} takes {1e3 * median:.3f} ms, above {limit}"
        for name, median in medians.items()
        if median > THOUSAND_LIMIT
    ]


def read_words() -> argparse.Namespace:
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--rounds", type=int, default=40, help="rounds of each workload, at most")
    words.add_argument("--seconds", type=float, default=12.0, help="time for each workload, about")
    words.add_argument("--only", default="", help="workloads whose title contains this")
    words.add_argument("--without", default="", help="contestants to leave out, with commas between")
    words.add_argument(
        "--command", default=os.environ.get("FARANDOLE_COMMAND", "farandole"), help="the command `farandole`"
    )
    words.add_argument("--check", action="store_true", help="fail if ours is slower, or slower than promised")
    return words.parse_args()


def main() -> int:
    words = read_words()
    small, large = [[256]] * 1000, resnet50_shapes()
    names = [name for name in NAMES if name not in words.without.split(",")]
    # For each workload its title and what to build.
    workloads: list[tuple[str, dict[str, Any]]] = [
        ("1,000 arrays of 1 KB, one result", {"kind": "in", "shapes": small}),
        ("1,000 arrays of 1 KB, in and out", {"kind": "in and out", "shapes": small}),
        ("ResNet-50's 161 gradients, 102 MB, in and out", {"kind": "in and out", "shapes": large}),
    ]
    faults: list[str] = []
    with contestants(names, words.command) as everybody:
        print(f"{RANKS} ranks, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, float32", flush=True)
        for title, building in workloads:
            if words.only not in title:
                continue
            taking_part = [each for each in everybody if building["kind"] != "in" or each.name != "gloo"]
            for each in taking_part:
                each.ask(do="build", **building)
            compare(title, taking_part)
            times = measure(taking_part, words.rounds, words.seconds)
            among_us = [f"{title}: {name} is faster" for name in OURS]
            faults += [fault for fault in report(title, times, False) if fault not in among_us]
            if building["kind"] == "in":
                faults += above_limit(title, times)
    for fault in faults:
        print(fault)
    return int(words.check and bool(faults))


if __name__ == "__main__":
    sys.exit(main())
