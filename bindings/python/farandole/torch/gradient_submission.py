"""Submits gradients of any kind: in no batch, packed, on a device, or sparse.

Those on a device are reduced there (`device_memory`), or copied to the host together, waited for together and submitted
with one call. A sparse gradient cannot run together with its group, because it is gathered and not reduced; it is
submitted on its own, with a warning.

Not here: the steady state, in which dense gradients in host memory are submitted in batches (`gradient_queue`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from farandole import _native
from farandole.torch import device_memory, gradient_errors, gradient_packing, lent_memory, staging
from farandole.torch.compression import NoneCompressor
from farandole.torch.device_work import DeviceWork
from farandole.torch.gradients import Gradient
from farandole.torch.reduce_options import ReduceOptions


@dataclass(frozen=True)
class _Request:
    """A gradient, the memory that is reduced for it, and in which shape."""

    gradient: Gradient
    memory: torch.Tensor
    shape: tuple[int, ...]

    def native_arguments(self) -> tuple[int, tuple[int, ...], int, torch.UntypedStorage]:
        """Address, shape, element type and owner."""
        memory = self.memory
        return memory.data_ptr(), self.shape, lent_memory.DTYPE_CODES[memory.dtype], memory.untyped_storage()


def submit(
    gradients: Sequence[Gradient], options: ReduceOptions, key: str | None
) -> list[_native.BatchHandle | staging.AnyWork]:
    """Submits gradients, as they are now. `key` names a group of the user's."""
    on_host: list[_Request] = []
    on_device: list[_Request] = []
    for gradient in gradients:
        was_sparse = gradient.sparse_dims > 0
        request = _prepare(gradient, options)
        if request is None:
            if key is not None and not was_sparse:
                _warn_of_sparse(gradient)
        elif device_memory.stands_in or lent_memory.is_on_device(request.memory):
            on_device.append(request)
        else:
            on_host.append(request)
    handles: list[_native.BatchHandle | staging.AnyWork] = []
    if on_device and not (key is not None and on_host) and _reduced_where_they_lie(on_device, options):
        handles += _submit_on_devices(on_device, options, key)
    elif on_device:
        # A group is submitted with one call, so its members on the host wait for the device, too.
        with_them = on_host if key is not None else []
        handles.append(_submit_staged(on_device, with_them, options, key))
        on_host = on_host if key is None else []
    if on_host:
        tensors = [(request.gradient.name, *request.native_arguments()) for request in on_host]
        handles.append(_native.allreduce_batch(tensors, *options.reduction(), options.group(), key))
    return handles


def _prepare(gradient: Gradient, options: ReduceOptions) -> _Request | None:
    """What is submitted for a gradient. `None` if an operation of its own has been started for it."""
    grad = gradient.parameter.grad
    if grad is None:
        grad = gradient_packing.make_zeros(gradient)
    if grad.requires_grad:
        gradient_errors.raise_part_of_graph(gradient)
    gradient.note_submitted(grad)
    if options.compression is NoneCompressor and gradient.reduces_in_place(grad):
        gradient.unpack = None
        return _Request(gradient, grad, gradient.shape)
    packed = gradient_packing.pack(gradient, grad, options)
    return None if packed is None else _Request(gradient, packed, tuple(packed.shape))


def _reduced_where_they_lie(requests: Sequence[_Request], options: ReduceOptions) -> bool:
    """Whether these gradients are reduced in the memory of their GPUs. Those of one call are submitted alike."""
    collective, group = ("allreduce", *options.reduction()), options.group()
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for request in requests:
        by_device.setdefault(request.memory.device, []).append(request.memory)
    return all(device_memory.takes(on_it, collective, group) for on_it in by_device.values())


def _submit_on_devices(
    requests: Sequence[_Request], options: ReduceOptions, key: str | None
) -> list[staging.AnyWork]:
    """Submits gradients with one call for each GPU. A group of the user's lies on one."""
    by_device: dict[torch.device, list[_Request]] = {}
    for request in requests:
        by_device.setdefault(request.memory.device, []).append(request)
    if key is not None and len(by_device) > 1:
        return [_submit_staged(requests, [], options, key)]
    handles: list[staging.AnyWork] = []
    for device, on_it in by_device.items():
        tensors = [(request.gradient.name, *request.native_arguments(), None) for request in on_it]
        place = device_memory.place_to_record(device)
        collective = ("allreduce", *options.reduction())
        handle = _native.submit_on_device(collective, tensors, options.group(), key, place)
        handles.append(DeviceWork(handle, device))
    return handles


def _submit_staged(
    on_device: Sequence[_Request], on_host: Sequence[_Request], options: ReduceOptions, key: str | None
) -> staging.AnyWork:
    """Begins to copy what is on a device. It is submitted with one call, as soon as all copies are complete."""
    loans = lent_memory.lend_together([request.memory for request in on_device])
    for request, loan in zip(on_device, loans, strict=True):
        gradient_packing.stage(request.gradient, loan)
    loans += [lent_memory.Loan(request.memory, request.memory) for request in on_host]
    group, tensors = options.group(), []
    for request, loan in zip([*on_device, *on_host], loans, strict=True):
        address, _, dtype_code, owner = loan.native_arguments()
        tensors.append((request.gradient.name, address, request.shape, dtype_code, owner))
    return staging.submit_batch(loans, lambda: _native.allreduce_batch(tensors, *options.reduction(), group, key))


def _warn_of_sparse(gradient: Gradient) -> None:
    """Says that a group does not hold for this gradient. Called when that is found out."""
    warnings.warn(
        f"groups: the gradient of {gradient.parameter_name!r} is sparse. Sparse gradients are gathered one by one, so "
        "it is not reduced together with its group; the other members are. Pass sparse_as_dense=True to have it "
        "reduced with its group.",
        stacklevel=2,
    )
