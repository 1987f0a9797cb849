"""Batches as tensors of a framework, without a copy where it can be.

The memory of a batch goes through DLPack and back to the loader when the last tensor that uses it is gone.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["FRAMEWORKS", "collate", "converter", "usual"]

Converter = Callable[[Any], Any]


def usual() -> str:
    """PyTorch where it is installed, else NumPy."""
    return "torch" if importlib.util.find_spec("torch") is not None else "numpy"


def _torch() -> Converter:
    import torch

    return torch.from_dlpack


def _numpy() -> Converter:
    import numpy

    return numpy.from_dlpack


def _jax() -> Converter:
    import jax
    import jax.numpy
    import numpy

    def convert(array: Any) -> Any:
        # JAX knows 64-bit numbers only if it was told so; labels are few, and copied.
        if len(array.shape) < 4:
            return jax.numpy.asarray(numpy.from_dlpack(array))
        return jax.dlpack.from_dlpack(array)

    return convert


def _tensorflow() -> Converter:
    import tensorflow

    return lambda array: tensorflow.experimental.dlpack.from_dlpack(array.__dlpack__())


FRAMEWORKS: dict[str, Callable[[], Converter]] = {
    "torch": _torch,
    "numpy": _numpy,
    "jax": _jax,
    "tensorflow": _tensorflow,
}


def converter(framework: str, dtype: str) -> Converter:
    """What makes tensors of memory."""
    if framework not in FRAMEWORKS:
        raise ValueError(f"framework {framework!r} is not known; there are {', '.join(FRAMEWORKS)}")
    if framework == "numpy" and dtype == "bfloat16":
        raise ValueError("NumPy has no bfloat16: ask for float16 or float32")
    return FRAMEWORKS[framework]()


def collate(framework: str) -> Callable[..., Any]:
    """What makes a batch of samples that were made by a function in Python."""
    if framework == "torch":
        from torch.utils.data import default_collate

        return default_collate

    def stack(samples: Sequence[Any]) -> Any:
        import numpy

        if isinstance(samples[0], tuple):
            return tuple(numpy.stack([numpy.asarray(one) for one in column]) for column in zip(*samples, strict=True))
        return numpy.stack([numpy.asarray(sample) for sample in samples])

    return stack
