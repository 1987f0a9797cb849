"""One process of one contestant of `tensorflow_peers.py`, which starts it and tells it what to do.

``python tensorflow_contestant.py CONTESTANT FOLDER`` connects to the socket in FOLDER, says its rank, and then answers
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

import numpy as np
import tensorflow as tf

#: Makes so many iterations; for each the seconds on the clock, and those of the processor, of all threads together.
Turn = Callable[[int], list[tuple[float, float]]]


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

    def __init__(self) -> None:
        self.rank = int(os.environ["CONTESTANT_RANK"])

    def variables(self, shapes: list[tuple[int, ...]]) -> list[tf.Variable]:
        return [tf.Variable(tf.zeros(shape)) for shape in shapes]

    def gradients(self, tape: tf.GradientTape, loss: tf.Tensor, variables: list[tf.Variable]) -> list[tf.Tensor]:
        """What a training loop calls: gradients, reduced."""
        return tape.gradient(loss, variables)

    def run(self, step: Callable[[], Any]) -> Any:
        """How this contestant runs a step."""
        return step()

    def compiled(self, build: Callable[[], Any]) -> Any:
        """A Keras model that is ready for `fit`."""
        import keras

        model = build()
        model.compile(self.optimizer(keras.optimizers.SGD(0.001)), "sparse_categorical_crossentropy", jit_compile=False)
        return model

    def optimizer(self, plain: Any) -> Any:
        return plain


class Wrapping(Nothing):
    """`DistributedGradientTape` and Keras's `DistributedOptimizer`: ours, or those of the real Horovod."""

    def __init__(self, package: str) -> None:
        import importlib

        self.package = package
        self.hvd = importlib.import_module(f"{package}.tensorflow")
        self.hvd.init()
        self.rank = self.hvd.rank()

    def gradients(self, tape: tf.GradientTape, loss: tf.Tensor, variables: list[tf.Variable]) -> list[tf.Tensor]:
        return self.hvd.DistributedGradientTape(tape, op=self.hvd.Sum).gradient(loss, variables)

    def optimizer(self, plain: Any) -> Any:
        import importlib

        return importlib.import_module(f"{self.package}.keras").DistributedOptimizer(plain)


class Ring(Nothing):
    """`MultiWorkerMirroredStrategy` with its ring over gRPC; with `megabytes` above 0, gradients leave in packs of
    about that size."""

    def __init__(self, megabytes: int = 0) -> None:
        self.rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        self.options = tf.distribute.experimental.CommunicationOptions(megabytes << 20, implementation=ring)
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=self.options)

    def variables(self, shapes: list[tuple[int, ...]]) -> list[tf.Variable]:
        with self.strategy.scope():
            return super().variables(shapes)

    def gradients(self, tape: tf.GradientTape, loss: tf.Tensor, variables: list[tf.Variable]) -> list[tf.Tensor]:
        ready = tape.gradient(loss, variables)
        return tf.distribute.get_replica_context().all_reduce("sum", ready, options=self.options)

    def run(self, step: Callable[[], Any]) -> Any:
        return self.strategy.run(step)


CONTESTANTS: dict[str, Callable[[], Nothing]] = {
    "nothing": Nothing,
    "farandole": lambda: Wrapping("farandole"),
    "horovod": lambda: Wrapping("horovod"),
    "ring": Ring,
    "ring packed": lambda: Ring(megabytes=16),
}


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def since(begun: tuple[float, float]) -> tuple[float, float]:
    clock, processor = now()
    return clock - begun[0], processor - begun[1]


def timed(line: StartingLine, iterate: Callable[[], Any]) -> Turn:
    def turn(iterations: int) -> list[tuple[float, float]]:
        seconds = []
        for _ in range(iterations):
            line.wait()
            begun = now()
            iterate()
            seconds.append(since(begun))
        return seconds

    return turn


class Reducing:
    """Gradients that were made beforehand, from `tape.gradient` to reduced, in a `tf.function` or eagerly."""

    def __init__(self, contestant: Nothing, shapes: list[tuple[int, ...]], mode: str) -> None:
        variables = contestant.variables(shapes)
        values = [float(contestant.rank + 1 + index % 7) for index in range(len(shapes))]
        ready = [tf.fill(shape, value) for shape, value in zip(shapes, values, strict=True)]

        @tf.custom_gradient
        def hand_out(*parameters: tf.Tensor) -> Any:
            return tf.zeros(()), lambda _: ready

        def reduce() -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                loss = hand_out(*variables)
            return contestant.gradients(tape, loss, variables)

        def step() -> tf.Tensor:
            # One small result: handing out a thousand tensors would be part of the time.
            with tf.control_dependencies(reduce()):
                return tf.constant(0.0)

        if mode == "function":
            self.iterate = tf.function(lambda: contestant.run(step))
            self.reduced = tf.function(lambda: contestant.run(reduce))
        else:
            self.iterate = self.reduced = lambda: contestant.run(reduce)

    def first_elements(self) -> list[float]:
        return [float(tf.reshape(gradient, [-1])[0]) for gradient in self.reduced()]


class Fitting:
    """Steps of Keras's `fit`, ResNet-50."""

    def __init__(self, contestant: Nothing, line: StartingLine, batch: int, side: int) -> None:
        import keras

        def build() -> Any:
            keras.utils.set_random_seed(1)
            return keras.applications.ResNet50(weights=None, input_shape=(side, side, 3), classes=1000)

        class Clock(keras.callbacks.Callback):
            def __init__(self) -> None:
                super().__init__()
                self.seconds: list[tuple[float, float]] = []

            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                line.wait()
                self.begun = now()

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                self.seconds.append(since(self.begun))

        self.model = contestant.compiled(build)
        self.clock = Clock
        images = np.random.default_rng(contestant.rank).standard_normal((batch, side, side, 3), dtype=np.float32)
        self.data = tf.data.Dataset.from_tensors((images, np.zeros(batch, np.int64))).cache().repeat()

    def turn(self, iterations: int) -> list[tuple[float, float]]:
        clock = self.clock()
        self.model.fit(self.data, steps_per_epoch=iterations, epochs=1, verbose=0, callbacks=[clock])
        return clock.seconds

    def first_elements(self) -> list[float]:
        return [float(np.ravel(np.asarray(weight))[0]) for weight in self.model.trainable_weights]


def serve(contestant: Nothing, line: StartingLine, stream: Any) -> None:
    """Answers requests until there are no more."""
    turn: Turn | None = None
    work: Any = None
    for words in stream:
        request = json.loads(words)
        if request["do"] == "build":
            turn, work = None, None  # What was there before is given up first.
            if request["kind"] == "fit":
                work = Fitting(contestant, line, request["batch"], request["side"])
                turn = work.turn
            else:
                work = Reducing(contestant, [tuple(shape) for shape in request["shapes"]], request["kind"])
                turn = timed(line, work.iterate)
            answer: Any = True
        elif request["do"] == "turn":
            assert turn is not None, "invariant: a turn follows a build"
            answer = turn(request["iterations"])
        else:
            answer = work.first_elements()
        stream.write(json.dumps(answer) + "\n")
        stream.flush()


def main() -> None:
    name, folder, ranks = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    # Ranks share the cores, so each computes with one thread.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    contestant = CONTESTANTS[name]()
    line = StartingLine(folder / f"{name}.line", contestant.rank, ranks)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(folder / "socket"))
        stream = connection.makefile("rw")
        stream.write(json.dumps({"contestant": name, "rank": contestant.rank}) + "\n")
        stream.flush()
        serve(contestant, line, stream)


if __name__ == "__main__":
    main()
