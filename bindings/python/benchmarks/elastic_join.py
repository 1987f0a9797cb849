"""How long a training stands still when a process joins: its state sent when it is let in, or streamed before.

Two ranks, each on a host of its own (a network namespace; `namespaces.py`) behind a cable of so many bits in a second,
or both on this host. The worker is the example `streaming` of the crate `farandole`, which says what it measures, or
`elastic_join_torch.py`, which measures the same of a training with PyTorch:

    cargo build --release --bin farandole && cargo build --release -p farandole --example streaming
    python bindings/python/benchmarks/elastic_join.py --megabytes 200 --rate 1gbit --step-ms 2000
    python bindings/python/benchmarks/elastic_join.py --torch --megabytes 200 --rate 1gbit --step-ms 2000
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

import namespaces

RELEASE = pathlib.Path(__file__).parents[3] / "target" / "release"

DEADLINE = 600
"""Seconds for all joins of one way."""


def network(rate: str) -> namespaces.Network:
    """Three hosts, the launcher's among them, whose cables carry so much."""
    made = namespaces.Network(3, pathlib.Path(tempfile.mkdtemp(prefix="farandole-join-")))
    shape = ["root", "tbf", "rate", rate, "burst", "1mb", "latency", "50ms"]
    for host in range(len(made)):
        subprocess.run(["tc", "qdisc", "add", "dev", f"port{host}", *shape], check=True)
        subprocess.run([*made.words_on(host), "tc", "qdisc", "add", "dev", "eth0", *shape], check=True)
    return made


def main() -> None:
    """Measures both ways, in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", default="200", help="size of the state: parameters, and twice as much of Adam's")
    parser.add_argument("--step-ms", default="500", help="what a step computes, in milliseconds")
    parser.add_argument("--joins", default="5", help="how often a process joins, for each way and turn")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--rate", help="what a cable carries, in words of tc (1gbit); all on this host without it")
    parser.add_argument("--torch", action="store_true", help="a training with PyTorch")
    options = parser.parse_args()
    flags = ["run", "-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "0", "0"]
    before: list[str] = []
    environment = dict(os.environ, FARANDOLE_TRACE_TROUBLE="0")
    if options.rate:
        namespaces.enter()
        hosts = network(options.rate)
        before = hosts.words_on(0)
        environment["PATH"] = hosts.path()
        flags += ["-H", f"{namespaces.name(1)}:1,{namespaces.name(2)}:1"]
    worker = [str(RELEASE / "examples" / "streaming")]
    if options.torch:
        worker = [sys.executable, str(pathlib.Path(__file__).with_name("elastic_join_torch.py"))]
    worker += ["--megabytes", options.megabytes]
    worker += ["--step-ms", options.step_ms, "--joins", options.joins]
    for _ in range(options.turns):
        for way in ([], ["--streamed"]):
            words = [*before, str(RELEASE / "farandole"), *flags, *worker, *way]
            ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=DEADLINE)
            said = [line.partition(">:")[2] for line in ended.stdout.splitlines() if " MB, " in line]
            if ended.returncode != 0 or not said:
                raise SystemExit(f"{' '.join(words)} ended with {ended.returncode}\n{ended.stdout}{ended.stderr}")
            print(said[0], flush=True)


if __name__ == "__main__":
    main()
