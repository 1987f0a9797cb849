"""The functions of `farandole.keras` and `farandole.tensorflow.keras`, for the Keras that each of them is for.

Owns what both do, and the documents of it. The two modules have the signatures with a default that depends on the
backend, and those of Horovod that differ in the order of their arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Optional, TypeVar

from farandole import gradient_settings
from farandole._keras import models, optimizers, values
from farandole._keras import variables as _variables
from farandole.basics import basics
from farandole.gradient_settings import Settings
from farandole.process_sets import ProcessSet, global_process_set

_Function = TypeVar("_Function", bound=Callable[..., Any])


def documented_by(source: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Has a function that passes its arguments on say what the other one says."""

    def document(function: _Function) -> _Function:
        function.__doc__ = source.__doc__
        return function

    return document


def checked(num_groups: int = 0, *, stacklevel: int = 3, **arguments: Any) -> Settings:
    """The settings that these arguments of `DistributedOptimizer` mean. Refuses what optimizers of Keras cannot do."""
    settings = gradient_settings.checked(num_groups, stacklevel=stacklevel + 1, **arguments)
    if settings.op not in (basics.Average, basics.Sum):
        raise ValueError("op currently only supports Average and Sum")
    if not settings.gradient_predivide_factor > 0:
        raise ValueError(f"gradient_predivide_factor must be above 0, not {settings.gradient_predivide_factor}")
    if not isinstance(settings.backward_passes_per_step, int) or settings.backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    return settings


class FrontEnd:
    """The functions for one Keras.

    keras: the module `keras`, or what stands for it.
    backend: the name of its backend.
    """

    def __init__(self, keras: Any, backend: str) -> None:
        self.keras = keras
        self.backend = backend

    def distributed_optimizer(self, optimizer: Any, num_groups: int = 0, **arguments: Any) -> Any:
        """An optimizer like this one that reduces gradients over all ranks before it applies them.

        Its class is made at run time from the optimizer's and has the same name, so that models can be saved, and
        loaded without Farandole.

        Arguments:
            optimizer: an optimizer of Keras, or a `LossScaleOptimizer` around one.
            name: prefix of the names of operations.
            device_dense, device_sparse: TensorFlow's devices for the operations. Not used on other backends.
            compression: what is sent in place of gradients, from `hvd.Compression`.
            sparse_as_dense: reduce sparse gradients as dense ones.
            gradient_predivide_factor: gradients are divided by it before they are added and multiplied by it
                afterwards.
            op: `Average` or `Sum`.
            num_groups: deprecated; use `groups`.
            groups: how many groups of gradients are reduced together, or lists of variables whose gradients are.
            backward_passes_per_step: gradients of so many calls are added up on each rank before they are reduced and
                applied.
            average_aggregated_gradients: divide such sums by the number of calls.
            process_set: the ranks that take part.
            scale_local_gradients: divide gradients of variables of `register_local_var` by the number of ranks.
        """
        return optimizers.distributed(optimizer, checked(num_groups, stacklevel=4, **arguments))

    def partial_distributed_optimizer(self, optimizer: Any, local_layers: Any = None, **arguments: Any) -> Any:
        """As `DistributedOptimizer`, but the gradients of some layers stay on each rank.

        local_layers: a layer, or several, which have been built.
        """
        return optimizers.partial(optimizer, checked(**arguments), local_layers)

    def broadcast_global_variables(self, root_rank: int) -> None:
        """Gives all ranks the root's global variables. Only graphs of TensorFlow 1 have any; see
        `broadcast_variables`."""
        if _variables.graph_session(self.backend) is None:
            raise RuntimeError(
                "hvd.broadcast_global_variables() needs a graph of TensorFlow 1. Please use "
                "`hvd.callbacks.BroadcastGlobalVariablesCallback` or "
                "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
            )
        import tensorflow as tf

        _variables.broadcast(tf.compat.v1.global_variables(), root_rank, self.backend)

    def broadcast_variables(
        self, variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set
    ) -> None:
        """Gives all ranks the root's values of variables of Keras, such as `model.weights` and
        `optimizer.variables`."""
        _variables.broadcast(list(variables), root_rank, self.backend, process_set)

    def allgather(self, value: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> Any:
        """The values of all ranks, one after the other along the first dimension, in which they may differ."""
        return values.allgather(self.backend, value, name, process_set)

    def broadcast(
        self, value: Any, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
    ) -> Any:
        """The root's value."""
        return values.broadcast(self.backend, value, root_rank, name, process_set)

    def reducescatter(
        self,
        value: Any,
        name: Optional[str] = None,
        op: int = basics.Average,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        """This rank's part, along the first dimension, of the combination of the values of all ranks."""
        return values.reducescatter(self.backend, value, name, op, process_set)

    def load_model(
        self,
        filepath: Any,
        custom_optimizers: Optional[Iterable[type]],
        custom_objects: Optional[Mapping[str, Any]],
        compression: Any,
        legacy_opts: bool,
    ) -> Any:
        """Loads a model that was saved with its optimizer, and makes the optimizer distributed.

        Arguments:
            filepath: what `models.load_model` of Keras takes.
            custom_optimizers: classes of optimizers that Keras does not know.
            custom_objects: names and objects for Keras.
            compression: as for `DistributedOptimizer`.
            legacy_opts: not used; the kind of optimizer is known from the file.
        """
        del legacy_opts
        settings = checked(compression=compression)
        return models.load_model(self.keras, filepath, custom_optimizers, custom_objects, settings)
