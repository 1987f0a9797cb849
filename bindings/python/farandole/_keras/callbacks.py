"""What the callbacks do, for any Keras: classes that stand before a Keras's own `Callback`.

**Learning rates.** The momentum correction of Goyal et al. (https://arxiv.org/abs/1706.02677) multiplies the momentum
by new rate / old rate for one batch. Keras compiles the momentum into the train step as a constant, except in legacy
optimizers. In a velocity `v = momentum * v - rate * gradient` it is the same to multiply `v` before the batch, and that
works everywhere, so this is what is done.

**Broadcast.** It happens before the first batch, if every rank's model and optimizer have their variables then, and
else after it. Ranks ask each other, so that they agree.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Optional, Union

import numpy as np

from farandole import _native, objects
from farandole._keras import host, variables
from farandole.basics import basics
from farandole.process_sets import ProcessSet, global_process_set


class BroadcastGlobalVariables:
    """Gives all ranks the weights and the optimizer state of a rank when training begins.

    BroadcastGlobalVariablesCallback(root_rank, device="", local_variables=None)
    """

    model: Any

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Any = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.process_set = process_set
        self.broadcast_done = False
        self._local_vars: list[Any] = list(local_variables or ())

    def register_local_var(self, var: Any) -> None:
        """Leaves a variable as it is on each rank."""
        self._local_vars.append(var)

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts, if there is all that is to be broadcast, on all ranks."""
        if self.broadcast_done:
            return
        is_ready = variables.build_optimizer(self.model)
        flag = host.allreduce(
            np.array(is_ready, dtype=np.uint8), "broadcast.ready", basics.Min, process_set=self.process_set
        )
        if flag:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts, if it has not been done."""
        if not self.broadcast_done:
            variables.settled(self.model)
            self._broadcast()

    def _broadcast(self) -> None:
        backend = variables.backend_of(self.model)
        optimizer = getattr(self.model, "optimizer", None)
        local = {variables.key(variable) for variable in self._local_vars}
        shared = [variable for variable in variables.of_model(self.model) if variables.key(variable) not in local]
        state = variables.of_optimizer(optimizer)
        counts = objects.allgather_object((len(shared), len(state)), "broadcast.counts", self.process_set)
        if len(set(counts)) > 1:
            raise ValueError(
                "BroadcastGlobalVariablesCallback: the ranks have different models or optimizers; numbers of weights "
                f"and of optimizer variables by rank: {counts}"
            )
        variables.broadcast(shared + state, self.root_rank, backend, self.process_set)
        self.broadcast_done = True


class MetricAverage:
    """Averages metrics over all ranks at the end of each epoch. Callbacks that use metrics come after it.

    MetricAverageCallback(device="")
    """

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self.device = device
        self.process_set = process_set

    def on_epoch_end(self, epoch: int, logs: Optional[dict[str, Any]] = None) -> None:
        """Puts averages into the logs."""
        logs = {} if logs is None else logs
        names = sorted(logs)
        self._check(names)
        if not names:
            return
        own = np.array([float(logs[name]) for name in names], dtype=np.float64)
        for name, value in zip(names, host.allreduce(own, "metrics", basics.Average, process_set=self.process_set)):
            logs[name] = float(value)

    def _check(self, names: list[str]) -> None:
        """Refuses metrics that only some ranks have: their average would be of nothing, or of something else."""
        everybody = objects.allgather_object(names, "metrics.names", self.process_set)
        if all(others == names for others in everybody):
            return
        common = set.intersection(*map(set, everybody))
        told = {rank: extra for rank, others in enumerate(everybody) if (extra := sorted(set(others) - common))}
        raise ValueError(
            f"MetricAverageCallback: the ranks have different metrics. By rank, those that not all have: {told}. "
            "Evaluate on all ranks, or put the callback only where metrics are the same."
        )


Multiplier = Union[float, Callable[[float], float]]


class LearningRateSchedule:
    """Multiplies an initial learning rate by a function of the epoch, or by a power of a constant.

    LearningRateScheduleCallback(initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True,
    momentum_correction=True, steps_per_epoch=None)
    """

    model: Any
    params: dict[str, Any]

    def __init__(
        self,
        initial_lr: float,
        multiplier: Multiplier,
        start_epoch: int = 0,
        end_epoch: Optional[int] = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: Optional[int] = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            # A constant means exponential decay.
            factor = multiplier
            self.multiplier = lambda epoch: factor ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        """Finds out how many steps an epoch has, if that is going to matter."""
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self._autodetect_steps_per_epoch()

    def _autodetect_steps_per_epoch(self) -> int:
        if self.params.get("steps"):
            return int(self.params["steps"])
        raise ValueError(
            "Could not autodetect the number of steps per epoch. Please specify the steps_per_epoch parameter to the "
            f"{type(self).__name__}()."
        )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the rate, at the first batch of an epoch or at every one."""
        epoch = self.current_epoch
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if not self.staircase:
            assert self.steps_per_epoch, "invariant: known since the beginning of training"
            self._adjust(epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._adjust(epoch)

    def _adjust(self, epoch: float) -> None:
        variables.settled(self.model)
        optimizer = self.model.optimizer
        old, new = learning_rate(optimizer), self.initial_lr * self.multiplier(epoch)
        set_learning_rate(optimizer, new)
        if self.momentum_correction and old > 0 and new != old:
            _scale_velocities(optimizer, new / old)

    def on_epoch_end(self, epoch: int, logs: Optional[dict[str, Any]] = None) -> None:
        """Puts the rate into the logs."""
        if logs is not None:
            logs["lr"] = learning_rate(self.model.optimizer)


class LearningRateWarmup(LearningRateSchedule):
    """Raises the learning rate from `initial_lr / size` to `initial_lr` over the first epochs.

    LearningRateWarmupCallback(initial_lr, warmup_epochs=5, momentum_correction=True, steps_per_epoch=None, verbose=0)
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: Optional[int] = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # So that the rate is round at the end of an epoch.
            assert self.steps_per_epoch, "invariant: known since the beginning of training"
            epoch += 1.0 / self.steps_per_epoch
            size = _native.size()
            return 1.0 / size * (epoch * (size - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Optional[dict[str, Any]] = None) -> None:
        """Says when the rate is reached."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0 and _native.rank() == 0:
            rate = learning_rate(self.model.optimizer)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


def learning_rate(optimizer: Any) -> float:
    """The learning rate of an optimizer now."""
    rate = optimizer.learning_rate
    session = variables.graph_session(variables.backend_of(optimizer))
    if session is not None and not isinstance(rate, (int, float)):
        return float(session.run(rate))
    return float(variables._numpy(rate)) if not isinstance(rate, (int, float)) else float(rate)


def set_learning_rate(optimizer: Any, rate: float) -> None:
    """Sets it. An optimizer that was made with a schedule refuses."""
    if variables.graph_session(variables.backend_of(optimizer)) is not None:
        variables.assign([optimizer.learning_rate], [np.asarray(rate, dtype=np.float32)], "tensorflow")
    else:
        optimizer.learning_rate = rate


def _scale_velocities(optimizer: Any, factor: float) -> None:
    """Multiplies the velocities of an optimizer with momentum; see the module's text."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    for velocity in velocities(inner):
        backend = variables.backend_of(inner)
        variables.assign(
            [velocity], [value * value.dtype.type(factor) for value in variables.values([velocity], backend)], backend
        )


def velocities(optimizer: Any) -> list[Any]:
    """The variables of an optimizer with `momentum` that hold sums of steps, rate included: those of SGD and
    RMSprop."""
    momentum = getattr(optimizer, "momentum", None)
    if momentum is None or (isinstance(momentum, (int, float)) and momentum == 0):
        return []
    if hasattr(optimizer, "get_slot_names"):
        wanted = "momentum"
        return [
            variable
            for variable in variables.of_optimizer(optimizer)
            if variable.name.split(":")[0].rstrip("_0123456789").endswith(wanted)
        ]
    for name in ("momentums", "_momentums"):
        found = getattr(optimizer, name, None)
        if found:
            return [variable for variable in found if variable is not None]
    return []


class BestModelCheckpoint:
    """Saves the model whenever a metric is better than ever before. For one rank.

    The path may be set after the callback is made, as `filepath`.
    """

    filepath: Any

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: Any = None,
    ) -> None:
        # Keras 3 wants to see the ending of a path.
        ending = ".weights.h5" if save_weights_only else ".keras"
        super().__init__(
            filepath=f"unset{ending}" if filepath is None else os.fspath(filepath),  # type: ignore[call-arg]
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        if filepath is None:
            self.filepath = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuses to train for nothing."""
        if self.filepath is None:
            raise ValueError(
                "BestModelCheckpoint has no `filepath` yet: give it one, or set its attribute, before training"
            )
        above: Any = super()
        above.on_train_begin(logs)
