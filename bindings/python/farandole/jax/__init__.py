"""Farandole for JAX: `import farandole.jax as hvd`.

Horovod's names and JAX's, on arrays and trees of them, inside and outside of `jit`. Everything here lives in a module
of its own beside this one; `primitive` has the collectives themselves.
"""

from farandole import exports as _exports
from farandole.exports import *
from farandole.jax import functions as _functions
from farandole.jax import gradients as _gradients
from farandole.jax import moves as _moves
from farandole.jax import phases as _phases  # noqa: F401 -- Watches jobs from here on.
from farandole.jax import reduce as _reduce
from farandole.jax.compression import Compression
from farandole.jax.ending import shutdown
from farandole.jax.functions import *
from farandole.jax.gradients import *
from farandole.jax.moves import *
from farandole.jax.optimizer import DistributedOptimizer
from farandole.jax.programs import jit
from farandole.jax.reduce import *

__all__ = [
    *_exports.__all__,
    *_functions.__all__,
    *_gradients.__all__,
    *_moves.__all__,
    *_reduce.__all__,
    "Compression",
    "DistributedOptimizer",
    "jit",
]
