"""Reducing the gradients of a model: what the tape, the optimizers and the aggregation helpers have in common.

Owns `GradientReduction`: the terms on which gradients are reduced (`Settings`), and their names. `None` stays `None`.

**Eager execution.** All dense gradients leave in one call, each as a request of its own, and all sparse ones in two
(values, indices). So ranks may differ in the order of their calls, and a call costs little for each gradient.

**Graphs.** Each gradient gets an operation of its own, which starts as soon as the gradient is there, while the
backward pass goes on. But small gradients that are near each other in the list, and so come out of the backward pass
together, share one: for these, a node of the graph costs more than the reduction. Shapes and types alone decide, so
that all ranks decide alike. With `groups`, the gradients of a group wait for each other, in eager execution, too.

**Names.** A gradient is called after the position and the label of its variable (`util.label_of`), in the scope of
whoever reduces it. This is the same on all ranks if they pass the same variables in the same order, wherever in a
graph they do. With `use_generic_names` it is `grad_` and the position, and no scope counts.

Invariant: ranks that are not in the process set, and those that are alone in it, send nothing and keep their gradients.

Not here: when to reduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

import tensorflow as tf

from farandole.gradient_settings import Groups, Settings, check_predivide
from farandole.process_sets import ProcessSet, global_process_set
from farandole.tensorflow import mpi_ops, parameter_check
from farandole.tensorflow.compression import Compression
from farandole.tensorflow.mpi_ops import Adasum, Average
from farandole.tensorflow.reduce import (
    allreduce,
    check_sparse,
    grouped_allgather_slices,
    grouped_allreduce,
    on_device,
    size_for,
)
from farandole.tensorflow.util import (
    VariableSet,
    _executing_eagerly,
    as_written,
    elastic_job,
    key_of,
    label_of,
    scope_of_set,
    split_list,
)

AllreduceGrads = Callable[..., list[Any]]

_LABEL = "_farandole_label"

# Below this, a node's own cost (scheduling, a wake-up: some 5 us) is more than what a copy within shared memory takes.
_SMALL_BYTES = 64 * 1024
# Small gradients leave together up to these limits, so that those of the last layers need not wait for those of the
# first.
_SHARED_BYTES = 1024 * 1024
_SHARED_SPAN = 128
"""How far apart in the list, at most, gradients are that share an operation."""


class GradientReduction:
    """Reduces lists of gradients, always on the same terms: `reduction(grads, vars)` is the list of reduced gradients.

    Arguments:
        name: the scope of the gradients' names.
        device_dense, device_sparse, compression, op, process_set: as for `allreduce`.
        sparse_as_dense: whether `tf.IndexedSlices` are made dense first.
        gradient_predivide_factor: with `Average`, divide by this before adding and multiply by it afterwards.
        groups: how many groups of neighbours, or lists of variables; those in no list are on their own.
    """

    def __init__(
        self,
        name: str,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        groups: Groups = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        check_predivide(op, gradient_predivide_factor)
        self.name = name
        self.device_dense = device_dense
        self.device_sparse = device_sparse
        self.compression = compression
        self.sparse_as_dense = sparse_as_dense
        self.op = op
        self.groups = groups
        self.process_set = process_set
        #: Whether variables are compared with those of other ranks when their gradients are reduced.
        self.compares = True
        self.is_of_one_step = False
        #: By what scripts give all ranks the same variables.
        self.remedy = parameter_check.REMEDY
        # Average divides by the number of ranks by itself.
        self.prescale_factor = 1.0 / gradient_predivide_factor
        self.postscale_factor = gradient_predivide_factor

    @classmethod
    def of(cls, name: str, settings: Settings) -> GradientReduction:
        """The reduction with these settings, under the name of whoever reduces."""
        return cls(
            name,
            settings.device_dense,
            settings.device_sparse,
            settings.compression,
            settings.sparse_as_dense,
            settings.op,
            settings.gradient_predivide_factor,
            settings.groups,
            settings.process_set,
        )

    @as_written
    def __call__(
        self,
        grads: Sequence[Any],
        vars: Optional[Sequence[Any]] = None,
        use_generic_names: bool = False,
        compared: Optional[Sequence[Any]] = None,
    ) -> list[Any]:
        """The reduced gradients, in the order in which they came. compared: the variables, where names are not to be
        made of them."""
        if self.compares:
            step = self if self.is_of_one_step else None
            parameter_check.before_reducing(compared or vars or (), self.process_set, self.remedy, step)
        reduced = list(grads)
        if self.sparse_as_dense:
            reduced = [tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad for grad in reduced]
        present = [place for place, grad in enumerate(reduced) if grad is not None]
        eager = _executing_eagerly()
        asks_when_run = elastic_job() and not eager
        if not present or not (asks_when_run or self._has_peers()):
            return reduced
        tensors = [reduced[place] for place in present]
        variables = None if vars is None else [vars[place] for place in present]
        if asks_when_run:
            outputs = self._in_set_at_run_time(tensors, present, variables, use_generic_names)
        elif eager and self.groups is None:
            outputs = self._at_once(tensors, self._names(present, variables, use_generic_names))
        else:
            outputs = self._in_graph(tensors, present, variables, use_generic_names)
        for place, output in zip(present, outputs):
            reduced[place] = output
        return reduced

    def _has_peers(self) -> bool:
        return bool(self.process_set.included()) and self.process_set.size() != 1

    def _names(self, places: Sequence[int], variables: Optional[Sequence[Any]], generic: bool) -> list[str]:
        """Names of gradients among the ranks, without the scope of a graph."""
        if generic or variables is None:
            scope = "" if generic else f"{self.name}_Allreduce/"
            return [f"{scope}grad_{place}" for place in places]
        return [f"{self.name}_Allreduce/{place}_{_label(variable)}" for place, variable in zip(places, variables)]

    def _at_once(self, tensors: list[Any], names: list[str]) -> list[Any]:
        """Reduces gradients that are all there, without making them wait for each other."""
        sparse = [place for place, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
        if not sparse:
            return self._dense_at_once(tensors, names)
        check_sparse(self.op)
        results: list[Any] = [None] * len(tensors)
        dense = [place for place, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
        if dense:
            outputs = self._dense_at_once([tensors[place] for place in dense], [names[place] for place in dense])
            for place, output in zip(dense, outputs):
                results[place] = output
        with on_device(self.device_sparse):
            slices = grouped_allgather_slices(
                [tensors[place] for place in sparse],
                self.op,
                f"{self.name}_Allreduce/slices",
                self.process_set,
                ignore_name_scope=True,
            )
        for place, output in zip(sparse, slices):
            results[place] = output
        return results

    def _dense_at_once(self, tensors: list[Any], names: list[str]) -> list[Any]:
        with on_device(self.device_dense):
            if self.compression is Compression.none:
                return self._submitted(tensors, names)
            pairs = [self.compression.compress(tensor) for tensor in tensors]
            outputs = self._submitted([compressed for compressed, _ in pairs], names)
            return [self.compression.decompress(output, context) for output, (_, context) in zip(outputs, pairs)]

    def _submitted(self, tensors: list[Any], names: list[str]) -> list[Any]:
        return mpi_ops._allreduce_many(
            tensors,
            names,
            op=self.op,
            prescale_factor=self.prescale_factor,
            postscale_factor=self.postscale_factor,
            process_set=self.process_set,
        )

    def _in_graph(
        self, tensors: list[Any], places: Sequence[int], variables: Optional[Sequence[Any]], generic: bool
    ) -> list[Any]:
        """One operation for each gradient or group."""
        terms = dict(
            device_dense=self.device_dense,
            device_sparse=self.device_sparse,
            compression=self.compression,
            op=self.op,
            process_set=self.process_set,
            ignore_name_scope=generic,
        )
        # For slices, which are not added up on the way, the two factors cancel each other.
        scaling = dict(prescale_factor=self.prescale_factor, postscale_factor=self.postscale_factor)
        results: list[Any] = [None] * len(tensors)
        with tf.name_scope(scope_of_set(f"{self.name}_Allreduce", self.process_set)):
            if self.groups is None:
                for members in shared_nodes(tensors, self.op):
                    first = members[0]
                    name = self._node_name(places[first], variables and variables[first], generic, len(members))
                    if len(members) == 1:
                        factors = {} if isinstance(tensors[first], tf.IndexedSlices) else scaling
                        results[first] = allreduce(tensors[first], name=name, **terms, **factors)
                        continue
                    outputs = grouped_allreduce([tensors[member] for member in members], name=name, **terms, **scaling)
                    for member, output in zip(members, outputs):
                        results[member] = output
                return results
            for group_number, members in enumerate(self._members(len(tensors), variables)):
                name = f"grad_{group_number}" if generic else f"HorovodGroupedAllreduce_{group_number}"
                sparse = [member for member in members if isinstance(tensors[member], tf.IndexedSlices)]
                dense = [member for member in members if member not in sparse]
                for part, part_name, factors in ((dense, name, scaling), (sparse, f"{name}_slices", {})):
                    outputs = grouped_allreduce(
                        [tensors[member] for member in part], name=part_name, **terms, **factors
                    )
                    for member, output in zip(part, outputs):
                        results[member] = output
        return results

    @staticmethod
    def _node_name(place: int, variable: Any, generic: bool, members: int) -> str:
        if generic or variable is None:
            return f"grad_{place}"
        kind = "HorovodAllreduce" if members == 1 else "HorovodGroupedAllreduce"
        return f"{kind}_{place}_{mpi_ops._normalize_name(_label(variable))}"

    def _members(self, count: int, variables: Optional[Sequence[Any]]) -> list[list[int]]:
        """Which gradients are in which group."""
        if isinstance(self.groups, int):
            return split_list(list(range(count)), self.groups)
        if variables is None:
            raise ValueError("groups of variables need the variables of the gradients")
        place_of = {key_of(variable): place for place, variable in enumerate(variables)}
        members = []
        for group in self.groups or ():
            found = [place_of.pop(key_of(variable)) for variable in group if key_of(variable) in place_of]
            if found:
                members.append(found)
        return members + [[place] for place in place_of.values()]

    def _in_set_at_run_time(
        self, tensors: list[Any], places: Sequence[int], variables: Optional[Sequence[Any]], generic: bool
    ) -> list[Any]:
        """For graphs that outlive a change of the job: whether there are others is asked whenever the graph runs."""
        number = mpi_ops._set_id(self.process_set)
        included = tf.equal(mpi_ops.process_set_included_op(number), 1)
        outputs = tf.cond(
            tf.logical_and(included, tf.greater(mpi_ops.size_op(number), 1)),
            lambda: self._in_graph(tensors, places, variables, generic),
            lambda: list(tensors),
        )
        return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def shared_nodes(tensors: Sequence[Any], op: int) -> list[list[int]]:
    """Which gradients of a graph share a node: lists of their places, ordered by the first of each."""
    nodes: list[list[int]] = []
    open_node: dict[Any, tuple[list[int], int]] = {}
    """The node that still takes small gradients, and its bytes, by element type."""
    for place, tensor in enumerate(tensors):
        size_bytes = _small_size(tensor, op)
        if size_bytes is None:
            nodes.append([place])
            continue
        members, taken = open_node.get(tensor.dtype, ([], 0))
        if not members or taken + size_bytes > _SHARED_BYTES or place - members[0] >= _SHARED_SPAN:
            members, taken = [], 0
            nodes.append(members)
        members.append(place)
        open_node[tensor.dtype] = (members, taken + size_bytes)
    return nodes


def _small_size(tensor: Any, op: int) -> Optional[int]:
    """Bytes of a gradient that may share a node; `None` for others. Adasum looks at each tensor by itself."""
    if op == Adasum or isinstance(tensor, tf.IndexedSlices) or not tensor.shape.is_fully_defined():
        return None
    size_bytes = tensor.shape.num_elements() * tensor.dtype.size
    return size_bytes if size_bytes <= _SMALL_BYTES else None


def _label(variable: Any) -> str:
    """`label_of`, kept with the variable, because it is asked for in every step."""
    label = getattr(variable, _LABEL, None)
    if label is None:
        label = label_of(variable)
        try:
            setattr(variable, _LABEL, label)
        except AttributeError:
            pass
    return str(label)


def reduce_but_local(
    reduce: AllreduceGrads,
    grads: Sequence[Any],
    variables: Sequence[Any],
    local: VariableSet,
    scale_local: bool,
    process_set: ProcessSet,
    **options: Any,
) -> list[Any]:
    """Reduces the gradients of all variables that are not local.

    Those of local variables stay what they are or, with `scale_local`, are divided by the number of ranks. That is what
    the average is for a rank whose loss alone depends on the variable: with it, local and other variables learn at the
    same rate.
    """
    if not local:
        return list(reduce(grads, variables, **options))
    places = [place for place, variable in enumerate(variables) if variable not in local]
    reduced = reduce([grads[place] for place in places], [variables[place] for place in places], **options)
    results = [divided(grad, process_set) if scale_local else grad for grad in grads]
    for place, grad in zip(places, reduced):
        results[place] = grad
    return results


def divided(grad: Any, process_set: ProcessSet) -> Any:
    """A gradient, or none, divided by the number of ranks."""
    if grad is None:
        return None
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(divided(grad.values, process_set), grad.indices, grad.dense_shape)
    return grad / size_for(process_set, grad.dtype)
