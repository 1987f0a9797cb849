"""The variables of models and optimizers, of any Keras on any backend: which they are, their values, and how all ranks
get the same.

What is broadcast are weights, also those that are not trained, and the state of the optimizer. Random seeds and metrics
of Keras 3 stay what they are on each rank, so that dropout differs between ranks as it should.

On the JAX backend `fit` keeps the values outside of the variables while it trains. Whoever reads or writes them
meanwhile, in a callback, calls `settled` before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from farandole._keras import host
from farandole.process_sets import ProcessSet, global_process_set


def is_keras3(thing: Any) -> bool:
    """Whether a model, layer or optimizer is of Keras 3."""
    return hasattr(thing, "stateless_apply") or hasattr(thing, "stateless_call")


def backend_of(thing: Any) -> str:
    """The backend that the variables of a model or optimizer belong to."""
    if not is_keras3(thing):
        return "tensorflow"
    import keras

    return str(keras.backend.backend())


def key(variable: Any) -> int:
    """Tells variables apart; a variable of Keras 3 and the variable or parameter that it stands for are the same."""
    value = getattr(variable, "_value", None)
    return id(value) if hasattr(value, "assign") or hasattr(value, "requires_grad") else id(variable)


def of_model(model: Any) -> list[Any]:
    """The weights of a model."""
    return list(model.weights if is_keras3(model) else model.variables)


def of_optimizer(optimizer: Any) -> list[Any]:
    """The state of an optimizer: a list in Keras 3, a method in legacy optimizers, both in between."""
    if optimizer is None:
        return []
    variables = optimizer.variables
    return list(variables() if callable(variables) and not isinstance(variables, list) else variables)


def settled(model: Any) -> None:
    """Has the variables of a model hold their values while `fit` runs."""
    sync = getattr(model, "jax_state_sync", None)
    if sync is not None:
        sync()


def build_optimizer(model: Any) -> bool:
    """Makes the variables of a model's optimizer, if it can be known already which they are. Whether all of them are
    there."""
    optimizer = getattr(model, "optimizer", None)
    if not getattr(model, "built", False) or not model.weights:
        return False
    if optimizer is None:
        return True
    if hasattr(optimizer, "_create_all_weights"):
        optimizer._create_all_weights(model.trainable_variables)
    elif not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
        optimizer.build(model.trainable_variables)
    return True


def graph_session(backend: str) -> Any:
    """The session that Keras 2 runs graphs of TensorFlow 1 in; `None` in eager execution."""
    if backend != "tensorflow":
        return None
    import tensorflow as tf

    if tf.compat.v1.executing_eagerly_outside_functions():
        return None
    return tf.compat.v1.keras.backend.get_session()


def values(variables: Sequence[Any], backend: str) -> list[np.ndarray]:
    """The values of variables, as arrays of their own."""
    session = graph_session(backend)
    if session is not None:
        return list(session.run(list(variables)))
    return [np.array(_numpy(variable)) for variable in variables]


def _numpy(variable: Any) -> Any:
    if hasattr(variable, "numpy"):
        return variable.numpy()
    import keras

    return keras.ops.convert_to_numpy(variable)


def assign(variables: Sequence[Any], arrays: Sequence[np.ndarray], backend: str) -> None:
    """Gives variables these values."""
    if graph_session(backend) is not None:
        import tensorflow as tf

        tf.compat.v1.keras.backend.batch_set_value(list(zip(variables, arrays)))
        return
    for variable, array in zip(variables, arrays):
        variable.assign(array)


def broadcast(
    variables: Sequence[Any],
    root_rank: int,
    backend: str,
    process_set: ProcessSet = global_process_set,
    name: str = "variables",
) -> None:
    """Gives all ranks the root's values. All pass variables of the same shapes and types in the same order."""
    if backend == "tensorflow":
        from farandole.tensorflow.functions import broadcast_variables

        session = graph_session(backend)
        done = broadcast_variables(variables, root_rank, process_set=process_set)
        if session is not None:
            session.run(done)
    elif backend == "torch":
        from farandole.torch.functions import broadcast_parameters

        named = [(f"keras.{name}.{number}", getattr(v, "value", v).data) for number, v in enumerate(variables)]
        broadcast_parameters(named, root_rank, process_set)
    else:
        names = [f"{name}.{number}" for number in range(len(variables))]
        arrays = host.broadcast_many(values(variables, backend), names, root_rank, process_set)
        assign(variables, arrays, backend)
