"""One process of one contestant of `jax_peers.py`, which starts it and tells it what to do.

``python jax_contestant.py CONTESTANT FOLDER RANKS`` connects to the socket in FOLDER, says its rank, and then answers
requests, one JSON object in a line each: ``{"do": "build", …}`` makes what the workload needs, ``{"do": "turn", …}``
makes iterations and answers with the seconds of each, on the clock and of the processor, ``{"do": "check"}`` answers
with what was reduced. The ranks of a contestant begin each iteration together: they count in a file that all of them
map, so that nobody's collectives are used for waiting.

What is *not* here: who takes part, whose turn it is, and what the times mean.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np


class StartingLine:
    """Where the ranks of a contestant wait for each other."""

    def __init__(self, path: Path, rank: int, ranks: int) -> None:
        self.counts = np.memmap(path, dtype=np.int64, mode="r+", shape=(ranks, 8))  # A cache line for each.
        self.rank = rank
        self.number = 0

    def wait(self) -> None:
        self.number += 1
        self.counts[self.rank, 0] = self.number
        while self.counts[:, 0].min() < self.number:
            time.sleep(0)  # Others may need the core.


class Nothing:
    """The same work without communication."""

    def __init__(self, ranks: int) -> None:
        self.rank, self.ranks = int(os.environ["CONTESTANT_RANK"]), ranks

    def reduce(self, arrays: list[Any]) -> list[Any]:
        """The sums over the ranks, inside of a compiled program."""
        return [array * 1.0 for array in arrays]

    def compiled(self, program: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return jax.jit(program)

    def placed(self, array: np.ndarray) -> Any:
        """This rank's part of what a program takes."""
        return jnp.asarray(array)


class Farandole(Nothing):
    """A tree in one call."""

    def __init__(self, ranks: int, **how: Any) -> None:
        import farandole.jax as hvd

        hvd.init()
        self.hvd, self.rank, self.ranks, self.how = hvd, hvd.rank(), ranks, how

    def reduce(self, arrays: list[Any]) -> list[Any]:
        return self.hvd.allreduce(arrays, op=self.hvd.Sum, **self.how)


class Jitted(Farandole):
    """The same, compiled by our own `jit`."""

    def compiled(self, program: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return self.hvd.jit(program)


class Gloo(Nothing):
    """JAX's own collectives between processes. An array of one rank is a row of a global one."""

    def __init__(self, ranks: int) -> None:
        super().__init__(ranks)
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(os.environ["CONTESTANT_ADDRESS"], ranks, self.rank)
        self.mesh = jax.make_mesh((ranks,), ("ranks",))

    def reduce(self, arrays: list[Any]) -> list[Any]:
        return jax.lax.psum(arrays, "ranks")

    def compiled(self, program: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def of_rows(rows: Any) -> Any:
            results = program(jax.tree.map(lambda row: row[0], rows))
            return jax.tree.map(lambda result: result[None], results)

        spec = jax.sharding.PartitionSpec("ranks")
        return jax.jit(jax.shard_map(of_rows, mesh=self.mesh, in_specs=spec, out_specs=spec, check_vma=False))

    def placed(self, array: np.ndarray) -> Any:
        sharding = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec("ranks"))
        return jax.make_array_from_process_local_data(sharding, array[None])


CONTESTANTS: dict[str, Callable[[int], Nothing]] = {
    "nothing": Nothing,
    "farandole": Farandole,
    "jit": Jitted,
    "by name": lambda ranks: Farandole(ranks, name="tree", ordered=False),
    "gloo": Gloo,
}


class Reducing:
    """A program that reduces arrays which it takes. It returns all results, or the first of them."""

    def __init__(self, contestant: Nothing, shapes: list[list[int]], kind: str) -> None:
        values = [float(contestant.rank + 1 + index % 7) for index in range(len(shapes))]
        arrays = [np.full(shape, value, np.float32) for shape, value in zip(shapes, values, strict=True)]
        self.taken = [contestant.placed(array) for array in arrays]
        self.run_whole = self.run = contestant.compiled(contestant.reduce)
        if kind == "in":
            self.run = contestant.compiled(lambda taken: contestant.reduce(taken)[0])

    def iterate(self) -> Any:
        return jax.block_until_ready(self.run(self.taken))

    def first_elements(self) -> list[float]:
        results = jax.block_until_ready(self.run_whole(self.taken))
        return [float(np.asarray(result.addressable_shards[0].data).flat[0]) for result in results]


def turn(line: StartingLine, iterate: Callable[[], Any], iterations: int) -> list[tuple[float, float]]:
    """For each iteration the seconds on the clock, and those of the processor, of all threads together."""
    seconds = []
    for _ in range(iterations):
        line.wait()
        begun, processor = time.perf_counter(), time.process_time()
        iterate()
        seconds.append((time.perf_counter() - begun, time.process_time() - processor))
    return seconds


def main() -> None:
    name, folder, ranks = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    contestant = CONTESTANTS[name](ranks)
    line = StartingLine(folder / f"{name}.line", contestant.rank, ranks)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(folder / "socket"))
        stream = connection.makefile("rw")
        print(json.dumps({"contestant": name, "rank": contestant.rank}), file=stream, flush=True)
        workload: Any = None
        for request in map(json.loads, stream):
            answer: Any = None
            if request["do"] == "build":
                workload = Reducing(contestant, request["shapes"], request["kind"])
                workload.iterate()
            elif request["do"] == "turn":
                answer = turn(line, workload.iterate, request["iterations"])
            else:
                answer = workload.first_elements()
            print(json.dumps(answer), file=stream, flush=True)


if __name__ == "__main__":
    main()
