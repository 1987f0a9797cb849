"""Making ranks alike: variables and objects from one rank to all, and objects from all to all.

**Variables** of any kind: TensorFlow's, resource or reference, and those of Keras 3. Ranks pass the same variables in
the same order. They are known to the other ranks by their positions and labels (`util.label_of`), so that numbers in
the names of layers need not agree. In eager execution, all variables of a device are sent with one call and are written
in place; in graphs, each gets an operation of its own unless `inplace` is set, which saves the memory of a copy.

**Objects** do not pass through TensorFlow (`farandole.objects`), so that they work the same in eager execution, beside
a session, and with neither; the parameter `session` is accepted and not used.

Not here: checkpoints, and anything that follows a change of membership (`elastic.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Optional

import tensorflow as tf

from farandole import objects
from farandole.process_sets import ProcessSet, global_process_set
from farandole.tensorflow import mpi_ops
from farandole.tensorflow.util import _executing_eagerly, as_written, label_of, scope_of_set, tf_variable

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]


@as_written
def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> Any:
    """Gives all ranks the root's values of these variables. In a graph, returns the operation that does it.

    Arguments:
        variables: the same on all ranks, in the same order.
        root_rank: the rank whose values count, numbered in the world.
        process_set: the ranks that take part.
        inplace: in graphs, write into the variables' memory. Eager execution always does.
    """
    named = [(tf_variable(variable), f"{place}_{label_of(variable)}") for place, variable in enumerate(variables)]
    if not named:
        return None if _executing_eagerly() else tf.group()
    if inplace or _executing_eagerly():
        groups: dict[tuple[str, bool], list[tuple[Any, str]]] = {}
        for variable, label in named:
            groups.setdefault((variable.device, _is_resource(variable)), []).append((variable, label))
        with tf.name_scope(scope_of_set("broadcast_variables", process_set)):
            done = [
                mpi_ops.broadcast_(
                    [variable for variable, _ in members],
                    root_rank,
                    name=f"HorovodBroadcast_{number}",
                    process_set=process_set,
                    variable_names=[label for _, label in members],
                )
                for number, members in enumerate(groups.values())
            ]
            return None if _executing_eagerly() else tf.group(*tf.nest.flatten(done))
    assignments = []
    with tf.name_scope(scope_of_set("broadcast_variables", process_set)):
        for variable, label in named:
            name = f"HorovodBroadcast_{mpi_ops._normalize_name(label)}"
            value = mpi_ops.broadcast(variable, root_rank, name=name, process_set=process_set)
            assignments.append(variable.assign(value))
        return tf.group(*assignments)


def _is_resource(variable: Any) -> bool:
    """Whether a variable is a resource, as all are in eager execution, and not a reference."""
    return bool(variable.dtype == variable.dtype.base_dtype)


def broadcast_global_variables(root_rank: int) -> Any:
    """The operation that gives all ranks the root's values of all global variables of the default graph."""
    if _executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use "
            "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Gives all ranks the root's global variables when a session of `tf.compat.v1.train.MonitoredTrainingSession`
    begins, whether they come from an initializer or from a checkpoint.

    Arguments:
        root_rank: the rank whose values count.
        device: TensorFlow's name of the device on which to place the broadcast.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Makes the operation, once for a graph."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            with tf.device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs it."""
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's object, on all ranks. It is pickled; see `farandole.objects`.

    Arguments:
        obj: on the root, the object; elsewhere anything, which is ignored.
        root_rank: the rank whose object counts, numbered in the world.
        session: not used.
        name: tells simultaneous calls from different threads apart.
        process_set: the ranks that take part.
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """`broadcast_object` with everything but the object."""

    def broadcast(obj: Any) -> Any:
        return objects.broadcast_object(obj, root_rank, name or "broadcast_object_fn", process_set)

    return broadcast


def allgather_object(
    obj: Any, session: Any = None, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Everybody's objects, in the order of ranks, on all ranks. They are pickled; see `farandole.objects`.

    Arguments:
        obj: this rank's object.
        session: not used.
        name: tells simultaneous calls from different threads apart.
        process_set: the ranks that take part.
    """
    return objects.allgather_object(obj, name, process_set)
