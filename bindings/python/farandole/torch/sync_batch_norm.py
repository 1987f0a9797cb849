"""Batch normalisation over the batches of all ranks together.

Owns `SyncBatchNorm`, made of public operations of torch and of our collectives, so that it works on every device and
with every torch.

**Forward.** Every rank computes mean and sum of squared deviations of its own batch, for each channel. One allgather
tells them to all, together with the number of elements, in float64. Each rank merges them in the order of ranks (the
sum of squares around a common mean is the sum of those around the own means plus what the means differ by, weighted by
counts), which is exact for batches of any sizes, also empty ones, and does not lose digits as sums of squares would. 2
C + 1 numbers from each rank are sent.

**Backward.** The gradient of the input depends on the others through the sums of dy and of dy (x - mean) over all
elements; one allreduce of 2 C numbers. The gradients of weight and bias are those of this rank's own batch: an
optimizer reduces them like any others.

Invariant: with the sum of all ranks' losses as the loss, outputs, running statistics and gradients are those of
`torch.nn.BatchNorm` on the concatenated batch, up to rounding.

In evaluation mode nothing is exchanged. Gradients of gradients are not offered.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from farandole.torch.mpi_ops import ProcessSet, Sum, allgather, allreduce, global_process_set


class SyncBatchNorm(_BatchNorm):
    """`BatchNorm` for inputs of any number of dimensions from two on, with statistics over the batches of all ranks.

    Arguments:
        num_features: number of channels C of inputs of shape (N, C, ...).
        eps: added to the variance.
        momentum: weight of a new batch in the running statistics; `None` for the plain average of all batches.
        affine: whether there are weight and bias to learn.
        track_running_stats: whether statistics are kept for evaluation; without them, evaluation uses the batch's, too.
        process_set: the ranks whose batches count together.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        self.process_set = process_set
        _keep_from_compilers()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copied and unpickled layers come along here."""
        super().__setstate__(state)
        _keep_from_compilers()

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")
        if input.size(1) != self.num_features:
            raise ValueError(f"expected {self.num_features} channels (got input of shape {tuple(input.shape)})")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalises a batch."""
        self._check_input_dim(input)
        if not self.training and self.running_mean is not None:
            return functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
            )
        if not self.process_set.included() or self.process_set.size() == 1:
            return self._forward_alone(input)
        output, mean, variance, count = _normalised(input, self.weight, self.bias, self.eps, self.process_set)
        if self.training and self.running_mean is not None:
            self._keep(mean, variance * (count / (count - 1).clamp(min=1)))
        return output

    def _forward_alone(self, input: torch.Tensor) -> torch.Tensor:
        """What `BatchNorm` does."""
        keep = self.training and self.running_mean is not None
        return functional.batch_norm(
            input,
            self.running_mean if keep else None,
            self.running_var if keep else None,
            self.weight,
            self.bias,
            training=True,
            momentum=self._weight_of_this_batch() if keep else 0.0,
            eps=self.eps,
        )

    def _weight_of_this_batch(self) -> float:
        """Counts this batch and says how much it weighs in the running statistics."""
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        if self.momentum is not None:
            return self.momentum
        assert self.num_batches_tracked is not None, "invariant: statistics are kept only where batches are counted"
        return 1.0 / float(self.num_batches_tracked)

    @torch.no_grad()
    def _keep(self, mean: torch.Tensor, unbiased_variance: torch.Tensor) -> None:
        """Takes this batch into the running statistics."""
        weight = self._weight_of_this_batch()
        assert self.running_mean is not None and self.running_var is not None, "invariant: the caller has asked"
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_(unbiased_variance.to(self.running_var.dtype), weight)

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set
    ) -> torch.nn.Module:
        """The module with all its `BatchNorm` layers replaced by synchronised ones, which take over parameters and
        statistics."""
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            converted = cls(
                module.num_features,
                module.eps,
                module.momentum,
                module.affine,
                module.track_running_stats,
                process_set,
            )
            converted.weight, converted.bias = module.weight, module.bias
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                setattr(converted, name, getattr(module, name))
            converted.training = module.training
            return converted
        for name, child in module.named_children():
            module.add_module(name, cls.convert_sync_batchnorm(child, process_set))
        return module


_is_kept_from_compilers = False


def _keep_from_compilers() -> None:
    """Has `torch.compile` leave the exchange between ranks alone, once for all layers.

    Done for the first layer and not at import: it loads torch's compiler, which takes a second.
    """
    global _is_kept_from_compilers, _normalised
    if not _is_kept_from_compilers:
        _normalised = torch.compiler.disable(_normalised)
        _is_kept_from_compilers = True


def _normalised(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    process_set: ProcessSet,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The normalised batch, and mean, biased variance and number of elements of all batches."""
    with torch.no_grad():
        mean, variance, count = _statistics(input, process_set)
    output = _Normalise.apply(input, weight, bias, mean, variance, count, eps, process_set)
    return output, mean, variance, count


def _statistics(input: torch.Tensor, process_set: ProcessSet) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean, biased variance and number of elements for each channel over all ranks, in float64."""
    channels = input.size(1)
    own_count = input.numel() // channels if channels else 0
    own = torch.zeros(1, 2 * channels + 1, dtype=torch.float64, device=input.device)
    if own_count > 0:
        dims = [dim for dim in range(input.dim()) if dim != 1]
        own_variance, own_mean = torch.var_mean(_wide(input), dim=dims, correction=0)
        own[0, :channels] = own_mean
        own[0, channels:-1] = own_variance.double() * own_count
        own[0, -1] = own_count
    everybody = allgather(own, name=f"sync_batch_norm.statistics.{channels}", process_set=process_set)
    means, squares, counts = everybody[:, :channels], everybody[:, channels:-1], everybody[:, -1:]
    count = counts.sum()
    if count < 1:
        raise ValueError("SyncBatchNorm got empty batches on all ranks")
    mean = (means * counts).sum(0) / count
    variance = (squares + counts * (means - mean).square()).sum(0) / count
    return mean, variance, count


class _Normalise(torch.autograd.Function):
    """Normalising with given statistics, which depend on the inputs of all ranks."""

    @staticmethod
    def forward(ctx: Any, input, weight, bias, mean, variance, count, eps, process_set) -> torch.Tensor:
        kind = _wide(input).dtype
        mean, inverse = mean.to(kind), (variance + eps).rsqrt().to(kind)
        ctx.save_for_backward(input, weight, mean, inverse, count)
        ctx.process_set = process_set
        shape = _per_channel(input)
        scale = inverse if weight is None else inverse * weight
        output = (_wide(input) - mean.view(shape)) * scale.view(shape)
        if bias is not None:
            output += bias.view(shape)
        return output.to(input.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
        input, weight, mean, inverse, count = ctx.saved_tensors
        need_input, need_weight, need_bias = ctx.needs_input_grad[:3]
        shape = _per_channel(input)
        dims = [dim for dim in range(input.dim()) if dim != 1]
        dy = _wide(dy)
        deviation = _wide(input) - mean.view(shape)
        sums = torch.stack([dy.sum(dims), (dy * deviation).sum(dims)])
        d_weight = (sums[1] * inverse).to(weight.dtype) if need_weight else None
        d_bias = sums[0].clone().to(dy.dtype if weight is None else weight.dtype) if need_bias else None
        d_input = None
        if need_input:
            name = f"sync_batch_norm.gradients.{input.size(1)}"
            totals = allreduce(sums.double(), name=name, op=Sum, process_set=ctx.process_set) / count
            mean_dy, mean_dy_deviation = totals.to(dy.dtype)
            scale = inverse if weight is None else inverse * weight
            correction = (inverse.square() * mean_dy_deviation).view(shape)
            d_input = (dy - mean_dy.view(shape) - deviation * correction) * scale.view(shape)
            d_input = d_input.to(input.dtype)
        return d_input, d_weight, d_bias, None, None, None, None, None


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in a type that sums can be taken in: half precision becomes float32."""
    return tensor.float() if tensor.element_size() < 4 else tensor


def _per_channel(input: torch.Tensor) -> list[int]:
    """The shape in which one number for each channel meets a batch."""
    return [1, -1] + [1] * (input.dim() - 2)
