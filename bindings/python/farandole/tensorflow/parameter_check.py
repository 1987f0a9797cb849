"""Comparing the variables of TensorFlow with those of other ranks, when gradients are reduced.

Scripts may broadcast variables at the end of the first step, because optimizers have some of theirs only then. So the
first comparison comes when gradients of the same variables are reduced for the second time.

In eager execution it is made right before gradients are reduced. A compiled function runs outside of Python: the
variables whose gradients it reduces are noted while it is traced, and compared before each later call of the function.
`farandole.tensorflow.phases` knows which function is traced and when it is called, so with `FARANDOLE_PHASES=0`
variables of compiled functions are not compared.

Invariant: what is compared when follows from the calls that reduce gradients, which are the same on all ranks.

Not here: sessions of TensorFlow 1, whose variables have no value outside of a session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional
from weakref import ReferenceType, ref

import tensorflow as tf

from farandole import _native, array_pieces
from farandole.process_sets import ProcessSet, group_for

REMEDY = "hvd.broadcast_variables(model.variables, root_rank=0)"

_CHECKS = "_farandole_parameter_checks"
"""Attribute of the first variable of a list: the checks of the lists that begin with it. Attribute of a `tf.function`:
the checks of the variables whose gradients it reduces."""

_traced: Optional[Any] = None
"""The `tf.function` that is being called by the thread that trains, set by `phases`."""


class VariablesCheck:
    """The checks of one list of variables."""

    def __init__(self, variables: Sequence[Any], process_set: ProcessSet, remedy: str) -> None:
        self._variables = [ref(variable) for variable in variables]
        self._process_set = process_set
        self._check = _native.ParameterCheck(1, remedy, False)
        self._step: Optional[ReferenceType[Any]] = None

    def step_begins(self, step: Optional[object] = None) -> None:
        """Compares the variables, if that is due. Calls with the same object `step` are about one step."""
        if step is not None:
            if self._step is not None and self._step() is step:
                return
            self._step = ref(step)
        if not self._process_set.included():
            return
        group = group_for(self._process_set, "Allreduce")
        whole = self._check.next_step(group)
        if whole is not None:
            values = [(_name(variable), _value(variable)) for variable in (one() for one in self._variables)]
            self._check.compare(group, array_pieces.pieces(values))


def _name(variable: Any) -> str:
    return str(getattr(variable, "name", "")).removesuffix(":0")


def _value(variable: Any) -> Any:
    """The value in host memory, without a copy where it lies there; `None` where it has none of its own."""
    try:
        return variable.read_value().__array__()
    except (AttributeError, NotImplementedError, TypeError, ValueError, tf.errors.OpError):
        return None


def before_reducing(
    sources: Sequence[Any], process_set: ProcessSet, remedy: str = REMEDY, step: Optional[object] = None
) -> None:
    """Gradients of these variables are about to be reduced, or the function is traced that will do it. Calls with the
    same object `step` are about one step."""
    variables = [source for source in sources if isinstance(source, tf.Variable)]
    if not variables or not _native.is_initialized():
        return
    with tf.init_scope():
        is_eager = tf.executing_eagerly()
    if not is_eager:
        return
    checks = vars(variables[0]).setdefault(_CHECKS, {})
    key = (len(variables), process_set.process_set_id)
    check = checks.get(key)
    is_new = check is None
    if is_new:
        check = checks[key] = VariablesCheck(variables, process_set, remedy)
    if tf.executing_eagerly():
        check.step_begins(step)
        return
    if is_new:
        # The call that traces is the first step.
        with tf.init_scope():
            check.step_begins()
    if _traced is not None:
        noted = vars(_traced).setdefault(_CHECKS, [])
        if check not in noted:
            noted.append(check)


def before_call(function: Any) -> None:
    """A compiled function is about to be called by the thread that trains, in eager execution."""
    for check in vars(function).get(_CHECKS, ()):
        check.step_begins()


def tracing(function: Optional[Any]) -> None:
    """What is met from now on while tracing belongs to this function."""
    global _traced
    _traced = function
