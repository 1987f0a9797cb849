"""The sum or average of sparse tensors, by gathering what is not zero.

Entries at the same place are added up here before anything is sent: a batch that looks a word up ten times sends its
row once. What comes back holds each rank's entries one after the other and is not coalesced, as with Horovod; torch
adds entries at the same place wherever it uses such a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

import torch

from farandole.exports import Average, Sum
from farandole.process_sets import ProcessSet, global_process_set, group_for
from farandole.torch import handles
from farandole.torch.gather import allgather_async

__all__ = ["sparse_allreduce_async"]


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: Optional[str],
    op: int,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Asks for the sum or average of the ranks' sparse tensors. Returns a function that waits for it and returns it."""
    if not tensor.is_sparse:
        raise ValueError(
            f"Tensor type {tensor.type()} is not supported: sparse_allreduce_async takes sparse COO tensors."
        )
    if op not in (Average, Sum):
        raise ValueError("Sparse tensors can be summed and averaged only; pass op=hvd.Sum or op=hvd.Average.")
    coalesced = tensor.detach().coalesce()
    if name is None:
        group = group_for(process_set, "Allreduce")
        name = handles.name_of("sparse_allreduce", None, group)
    indices_handle = allgather_async(coalesced.indices().t(), f"{name}.indices", process_set)
    values_handle = allgather_async(coalesced.values(), f"{name}.values", process_set)

    def wait() -> torch.Tensor:
        values = handles.synchronize(values_handle)
        indices = handles.synchronize(indices_handle)
        if op == Average:
            rounding = None if values.is_floating_point() else "trunc"
            values = torch.div(values, process_set.size() or 1, rounding_mode=rounding)
        return torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=False)

    return wait
