"""Making ranks alike: parameters and states from one rank to all.

JAX's arrays do not change, so what comes from the root is returned. Python objects are pickled (`farandole.objects`);
arrays never are.
"""

from __future__ import annotations

from typing import Any, Optional

import jax

from farandole.jax.moves import broadcast
from farandole.objects import allgather_object, broadcast_object
from farandole.process_sets import ProcessSet, global_process_set

__all__ = ["allgather_object", "broadcast_object", "broadcast_parameters"]


def broadcast_parameters(
    params: Any,
    root_rank: int = 0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's tree of arrays: parameters, the state of an optimizer, keys of random numbers. In one call.

    All ranks bring trees of the same structure, shapes and types; `broadcast_object` is for other things.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not hasattr(leaf, "dtype") and not isinstance(leaf, (bool, int, float, complex)):
            raise TypeError(
                f"broadcast_parameters: {jax.tree_util.keystr(path)} is a {type(leaf).__name__} and not an array; "
                "broadcast_object() is for other things"
            )
    return broadcast(params, root_rank, name, process_set)
