"""What the modules of this front end share about TensorFlow itself: eager or graph, and which variable is which.

**Variables.** A variable comes as a `tf.Variable` (resource or reference), or as a variable of Keras 3, which stands
around one and has no `ref()`. `key_of` gives the same key for both views of one variable, so that they may be mixed.

**Names.** `label_of` gives a name for people and for the ranks to find each other's requests by. Keras numbers layers
as they are made (`dense_7`), and a rank that makes one more model than the others, to evaluate it, counts differently.
Labels leave these numbers out; whoever uses a label for more than one variable adds the position in a list.

Not here: anything that needs the engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Optional

import tensorflow as tf

from farandole.elastic import native as elastic

#: For functions that AutoGraph need not translate, because nothing in them depends on the value of a tensor.
#: Translating takes seconds.
as_written = tf.autograph.experimental.do_not_convert

_NUMBER_OF_LAYER = re.compile(r"_\d+(?=/|:|$)")
_NUMBER_OF_OUTPUT = re.compile(r":\d+$")


def _executing_eagerly() -> bool:
    """Whether operations run when they are called. False in graphs and while a `tf.function` is traced."""
    return bool(tf.executing_eagerly())


def _make_subgraph(f: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a `tf.function`."""
    return tf.function(f)  # type: ignore[no-any-return]


def _cache(f: Callable[..., Any]) -> Callable[..., Any]:
    """Remembers results by positional arguments, apart for eager execution and for graphs."""
    results: dict[Any, Any] = {}

    def cached(*args: Any) -> Any:
        key = (args, _executing_eagerly())
        if key not in results:
            results[key] = f(*args)
        return results[key]

    return cached


def elastic_job() -> bool:
    """Whether the number of ranks may change while a graph lives, so that graphs ask for it each time."""
    return elastic.enabled()


def is_keras_variable(variable: Any) -> bool:
    """Whether this is a variable of Keras 3. Asked of its attributes, because Keras need not be there."""
    if isinstance(variable, (tf.Variable, tf.Tensor)):
        return False
    return hasattr(variable, "path") and hasattr(variable, "value")


def tf_variable(variable: Any) -> Any:
    """The variable of TensorFlow in a variable of Keras 3; anything else is returned as it is."""
    return variable.value if is_keras_variable(variable) else variable


def tf_variables(variables: Iterable[Any]) -> list[Any]:
    """`tf_variable` of each."""
    return [tf_variable(variable) for variable in variables]


def variables_of(optimizer: Any) -> list[Any]:
    """The variables of an optimizer: a property since Keras 2.11, a method before and in TensorFlow's own."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def key_of(variable: Any) -> int:
    """What tells a variable from all others that are alive."""
    return id(tf_variable(variable))


class VariableSet:
    """Variables or tensors, each once; keeps them alive, so that their keys stay theirs."""

    def __init__(self, variables: Iterable[Any] = ()) -> None:
        self._by_key: dict[int, Any] = {}
        for variable in variables:
            self.add(variable)

    def add(self, variable: Any) -> None:
        """Puts one in."""
        inner = tf_variable(variable)
        self._by_key[id(inner)] = inner

    def __contains__(self, variable: Any) -> bool:
        return key_of(variable) in self._by_key

    def __iter__(self) -> Iterator[Any]:
        return iter(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)


def label_of(variable: Any) -> str:
    """A name for a variable that is the same on all ranks; not necessarily its own alone. See the module's text."""
    name = getattr(variable, "path", None)
    if not isinstance(name, str):
        try:
            name = variable.name
        except (AttributeError, ValueError, RuntimeError):
            name = None  # Tensors of eager execution have none.
    return _NUMBER_OF_LAYER.sub("", _NUMBER_OF_OUTPUT.sub("", name)) if name else "tensor"


def scope_of_set(name: str, process_set: Any) -> str:
    """A name scope for nodes of a process set, from the root of the graph, as `tf.name_scope` takes it.

    A node's name is what ranks find each other's requests by. TensorFlow counts nodes of one name in one scope, so that
    all ranks must make the same ones there. Ranks that are not in a set make none for it; so each set has a scope of
    its own. It begins at the root, because scopes around may have numbers of layers in their names.
    """
    number = process_set.process_set_id
    return f"{name}/" if number == 0 else f"{name}_set_{number}/"


def split_list(entries: list[Any], parts: int) -> list[list[Any]]:
    """So many lists of neighbours, of lengths that differ by one at most, the longer ones first; empty ones are left
    out."""
    size, longer = divmod(len(entries), parts)
    bounds = [number * size + min(number, longer) for number in range(parts + 1)]
    return [entries[begin:end] for begin, end in zip(bounds, bounds[1:]) if end > begin]


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Whether this is a power of two. Horovod's Adasum needs it; ours does not."""
    return num_rank != 0 and num_rank & (num_rank - 1) == 0


class _Reference:
    """Stands for a variable as a key of dictionaries; `deref` gives the variable. Keras 3's variables have no `ref()`
    of their own."""

    def __init__(self, variable: Any) -> None:
        self._variable = variable

    def deref(self) -> Any:
        """The variable."""
        return self._variable

    def __hash__(self) -> int:
        return key_of(self._variable)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reference) and key_of(self._variable) == key_of(other._variable)


def vars_to_refs(vars: Any) -> Any:
    """Lists of variables, nested at will, as tuples that can be keys of dictionaries."""
    if isinstance(vars, (list, tuple)):
        return tuple(vars_to_refs(variable) for variable in vars)
    return _Reference(vars)


def refs_to_vars(refs: Any) -> Any:
    """Undoes `vars_to_refs`."""
    if isinstance(refs, tuple):
        return [refs_to_vars(reference) for reference in refs]
    return refs.deref()


def static_size(process_set: Any) -> Optional[int]:
    """How many ranks a set has, where that stays so; `None` in elastic jobs, where it is to be asked for at run
    time."""
    return None if elastic_job() else process_set.size()
