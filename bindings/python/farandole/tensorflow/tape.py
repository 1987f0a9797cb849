"""`DistributedGradientTape`: a `tf.GradientTape` whose gradients are those of all ranks' batches together.

The tape that is made has the class of the tape that it is made of, with `gradient` overridden, and shares its records;
so it may be made before, in or after the `with` block that records. Everything else about it is TensorFlow's,
`jacobian` included, which nobody reduces.

Local sources keep their own gradients. That is for variables that only this rank has, such as a part of an embedding
table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Optional

import tensorflow as tf

from farandole.gradient_settings import Groups, checked
from farandole.process_sets import ProcessSet, global_process_set
from farandole.tensorflow.compression import Compression
from farandole.tensorflow.gradient_reduction import GradientReduction, reduce_but_local
from farandole.tensorflow.mpi_ops import Average
from farandole.tensorflow.util import VariableSet, as_written


class _DistributedGradientTape(tf.GradientTape):  # type: ignore[misc]
    """The methods that a distributed tape has beside those of its own class."""

    _recorder: Any
    """The tape that was wrapped."""
    _reduction: GradientReduction
    _local_sources: VariableSet
    process_set: ProcessSet
    scale_local_gradients: bool

    def register_local_source(self, source: Any) -> None:
        """Has the gradient of a source stay this rank's own."""
        self._local_sources.add(source)

    @as_written
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """The reduced gradients, in the structure of `sources`. With `use_generic_names` they are known to the other
        ranks by their positions alone, whatever the variables are called."""
        if isinstance(use_generic_names, tf.UnconnectedGradients):
            # Whoever thinks of tf.GradientTape.gradient passes this as the fourth argument.
            use_generic_names, unconnected_gradients = False, use_generic_names
        recorder = self._recorder
        if recorder._recording and not recorder._persistent:
            # Called in the block that records: as with TensorFlow's own tape, recording ends here.
            recorder._pop_tape()
        gradients = super().gradient(target, sources, output_gradients, unconnected_gradients)
        flat = tf.nest.flatten(gradients)
        reduced = reduce_but_local(
            self._reduction,
            flat,
            tf.nest.flatten(sources),
            self._local_sources,
            self.scale_local_gradients,
            self.process_set,
            use_generic_names=use_generic_names,
        )
        return tf.nest.pack_sequence_as(gradients, reduced)

    @as_written
    def get_local_and_global_gradients(
        self, target: Any, sources: Sequence[Any], output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """As `gradient`; returns pairs of source and gradient, those of local sources and those of the others."""
        gradients = self.gradient(target, sources, output_gradients, use_generic_names)
        pairs = list(zip(tf.nest.flatten(sources), tf.nest.flatten(gradients)))
        local = [pair for pair in pairs if pair[0] in self._local_sources]
        return local, [pair for pair in pairs if pair[0] not in self._local_sources]


_tape_classes: dict[type, type] = {}
"""The class of a distributed tape for each class of tapes. Steps make tapes, so that making a class for each would
cost."""


def _distributed_class(base: type) -> type:
    if base not in _tape_classes:
        if base is tf.GradientTape:
            _tape_classes[base] = _DistributedGradientTape
        else:
            _tape_classes[base] = type(base.__name__, (_DistributedGradientTape, base), {})
    return _tape_classes[base]


@as_written
def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """A tape that reduces the gradients of another over all ranks: `tape = hvd.DistributedGradientTape(tape)`.

    Arguments:
        gradtape: the tape that records.
        device_dense, device_sparse: TensorFlow's names of devices on which to place the reduction. Empty: where
            TensorFlow places it.
        compression: what is sent in place of dense gradients: `Compression.none`, `.fp16`, `.bf16` or your own.
        sparse_as_dense: make `tf.IndexedSlices` dense first. Good if most rows have a gradient.
        op: `Average`, `Sum`, or another reduction.
        gradient_predivide_factor: with `Average`, divide by this before adding and multiply by it afterwards.
        num_groups: the old name of an integer in `groups`.
        groups: reduce gradients in groups that are complete before they leave: how many, or lists of variables; those
            in no list are on their own.
        process_set: reduce over these ranks only. Other ranks keep their gradients.
        scale_local_gradients: divide the gradients of local sources by the number of ranks.
    """
    return _distributed_tape(**locals())


@as_written
def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """As `DistributedGradientTape`; the gradients of the trainable weights of `local_layers`, a layer of Keras or
    several, stay this rank's own."""
    return _distributed_tape(**locals())


def _distributed_tape(gradtape: tf.GradientTape, local_layers: Any = None, **arguments: Any) -> Any:
    settings = checked(**arguments, stacklevel=4)
    tape: Any = object.__new__(_distributed_class(type(gradtape)))
    tape.__dict__.update(gradtape.__dict__)
    tape._recording = False
    tape._recorder = gradtape
    tape._reduction = GradientReduction.of("DistributedGradientTape", settings)
    # However many gradients are taken of it.
    tape._reduction.is_of_one_step = True
    tape._local_sources = VariableSet()
    tape.process_set = settings.process_set
    tape.scale_local_gradients = settings.scale_local_gradients
    for variable in local_variables(local_layers):
        tape.register_local_source(variable)
    return tape


def local_variables(local_layers: Any) -> list[Any]:
    """The trainable weights of a layer or of several. `ValueError` for what is no layer."""
    layers: Optional[Iterable[Any]] = local_layers
    if layers is None:
        return []
    if _is_layer(layers):
        layers = [layers]
    layers = list(layers)
    if not all(map(_is_layer, layers)):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return [variable for layer in layers for variable in layer.trainable_weights]


def _is_layer(candidate: Any) -> bool:
    """Whether this is a layer of Keras 2 or 3. Asked of its attributes, because there may be two Keras beside each
    other."""
    return hasattr(candidate, "trainable_weights") and callable(getattr(candidate, "add_weight", None))
