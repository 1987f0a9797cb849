"""The gradients of one optimizer: from autograd's hooks to the engine and back.

Backward calls a hook for each gradient that is ready. A call into the engine for each would cost more than many a
gradient is worth, and waiting for all would waste the time that backward still takes; so gradients are submitted in
*batches* whose members follow each other in backward. The order is learned (`batch_order`): in the first iteration each
gradient is submitted alone, and the order in which they became ready is then split into batches.

Invariant: the result does not depend on the batches. In the engine every gradient is a request of its own, under its
own name, so batches may differ between ranks. What backward did not make ready is submitted in `synchronize`, as it is
or as zeros. A gradient that did not become ready (an unused parameter, another branch of a dynamic graph) leaves its
batch then, so that it delays the others only once.

With groups of the user's, batches are these groups instead, and the members of each run together or not at all.

Hooks run in the threads of autograd and `synchronize` in the thread that calls the optimizer; autograd returns from
backward after its last hook, and all of it happens under the interpreter's lock. So nothing here is locked.

This file is the steady state: dense gradients, reduced in place, in host memory or in that of one GPU, where they may
travel in a narrower type: the engine narrows them when it packs them. Gradients of any other kind, and those in no
batch, are submitted by `gradient_submission`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from farandole import _native, basics
from farandole.elastic import native as elastic
from farandole.torch import device_memory, gradient_errors, gradient_packing, gradient_submission, run_ahead, staging
from farandole.torch.batch_order import BatchOrder
from farandole.torch.compression import NoneCompressor, travel_type
from farandole.torch.device_work import DeviceWork
from farandole.torch.gradients import Gradient
from farandole.torch.lent_memory import DTYPE_CODES
from farandole.torch.reduce_options import ReduceOptions


class GradientBatch:
    """Gradients that are submitted together, once all are ready.

    `missing` counts those that are not; `addresses` and `owners` are the memory and the storages of those that are.
    `needs_packing` says that one of them cannot be reduced in place; then all are submitted by `gradient_submission`.
    `place` is the GPU on which all of them lie and the stream that computed them, or `None` for host memory.
    `key` names a group of the user's, `narrow` the type in which they travel, if not their own.
    """

    __slots__ = (
        "addresses",
        "key",
        "members",
        "missing",
        "narrow",
        "native",
        "needs_packing",
        "owners",
        "place",
        "process_set_id",
    )

    def __init__(self, members: Sequence[Gradient], key: str | None = None) -> None:
        self.key = key
        self.process_set_id: int | None = None
        self.set_members(members)

    def set_members(self, members: Sequence[Gradient]) -> None:
        """From now on these are the members."""
        self.members = list(members)
        self.native: _native.GradientBatch | None = None
        self.narrow: torch.dtype | None = None
        for index, gradient in enumerate(self.members):
            gradient.batch, gradient.index = self, index
        self.reset()

    def reset(self) -> None:
        """Waits for all members again."""
        self.missing = len(self.members)
        self.needs_packing = False
        self.place: tuple[int, int] | None = None
        self.addresses = [0] * self.missing
        self.owners: list[torch.UntypedStorage | None] = [None] * self.missing

    def note_place(self, grad: torch.Tensor) -> None:
        """A member on a GPU is ready. All must lie on one, computed by one stream."""
        place = staging.current_place(grad.device)
        if self.place is None and self.missing == len(self.members):
            self.place = place
        elif self.place != place:
            self.needs_packing = True

    def submit(self, options: ReduceOptions) -> _native.BatchHandle | staging.AnyWork:
        """Submits all members, which are reduced in place; on a GPU, in a narrower type if one is asked for."""
        narrow = None if self.place is None else travel_type(options.compression)
        if (
            self.native is None
            or self.process_set_id != options.process_set.process_set_id
            or self.narrow is not narrow
        ):
            self.process_set_id = options.group()
            self.narrow = narrow
            # Gradients that are reduced in place have an element type that the engine knows.
            members = [
                (gradient.name, gradient.shape, cast(int, gradient.dtype_code)) for gradient in self.members
            ]
            code = None if narrow is None else DTYPE_CODES[narrow]
            self.native = _native.GradientBatch(members, *options.reduction(), self.process_set_id, self.key, code)
        if self.place is None:
            return self.native.submit(self.addresses, tuple(self.owners))
        return self._submit_on_device(self.native, self.place)

    def _submit_on_device(self, native: _native.GradientBatch, place: tuple[int, int]) -> DeviceWork:
        device = self.members[0].parameter.device
        device_memory.place_to_record(device)
        run_ahead.sweep()
        return DeviceWork(native.submit_on_device(self.addresses, tuple(self.owners), place), device)


_queues: weakref.WeakSet[GradientQueue] = weakref.WeakSet()
"""All there are. What they have in flight ends with the engine."""


def _forget() -> None:
    for queue in _queues:
        queue.reset()
        queue.declared = 0


basics.on_reset(_forget)


class GradientQueue:
    """The gradients of one optimizer, in flight and at rest."""

    def __init__(self, options: ReduceOptions, passes: int) -> None:
        self.options = options
        self.passes = passes
        #: Whether backward only accumulates (`no_sync`).
        self.no_sync = False
        #: Whether backward has computed any gradient since the last `synchronize`.
        self.has_new = False
        #: Whether all gradients are reduced and none has been submitted since.
        self.reduced = False
        #: How many gradients the other ranks were told of; there are never fewer than before.
        self.declared = 0
        self._gradients: list[Gradient] = []
        self._hooks: list[Any] = []
        self._batches: list[GradientBatch] = []
        self._in_flight: list[Gradient] = []
        self._handles: list[_native.BatchHandle | staging.AnyWork] = []
        self._order = BatchOrder()
        _queues.add(self)

    # Registration

    def register(self, parameter: torch.Tensor, name: str) -> None:
        """Reduces this parameter's gradients from now on."""
        gradient = Gradient(parameter, name, self.passes)
        self._gradients.append(gradient)
        self._hooks.append(parameter.register_post_accumulate_grad_hook(self._hook_of(gradient)))

    def group(self, names: Sequence[str], key: str) -> None:
        """Makes the gradients of these parameters a group that always runs together."""
        by_name = self.by_name()
        self._order.is_fixed = True
        self._batches.append(GradientBatch([by_name[name] for name in names], key))

    def by_name(self) -> dict[str, Gradient]:
        """All gradients by the names of their parameters."""
        return {gradient.parameter_name: gradient for gradient in self._gradients}

    @property
    def reduces_any(self) -> bool:
        """Whether there are gradients to reduce."""
        return bool(self._gradients)

    def remove_hooks(self) -> None:
        """Releases all parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def set_passes(self, passes: int) -> None:
        """From now on a gradient is ready after so many backward passes."""
        self.passes = passes
        for gradient in self._gradients:
            gradient.passes_left = passes

    # Submission, during backward

    def _hook_of(self, gradient: Gradient) -> Callable[[torch.Tensor], None]:
        """The function that backward calls whenever this gradient has been accumulated. It runs for each gradient of
        each iteration: it does as little as it can, and it reads the gradient's fields while they are in the cache."""
        uncompressed = self.options.compression is NoneCompressor
        narrow = travel_type(self.options.compression)
        stands_in = device_memory.stands_in
        single = torch.float32

        def is_narrowed_there(grad: torch.Tensor) -> bool:
            return (grad.is_cuda or stands_in) and grad.dtype is single

        def gradient_hook(parameter: torch.Tensor) -> None:
            if self.no_sync:
                return
            self.has_new = True
            gradient.passes_left = passes_left = gradient.passes_left - 1
            if passes_left > 0:
                return
            if passes_left < 0:
                gradient_errors.raise_too_many_passes()
            batch = gradient.batch
            if batch is None:
                self._order.submitted_alone += 1
                self._submit((gradient,))
                return
            grad: Any = parameter.grad  # A tensor: its hook runs.
            if (uncompressed or narrow is not None and is_narrowed_there(grad)) and gradient.reduces_in_place(grad):
                if grad.is_cuda or stands_in:
                    batch.note_place(grad)
                elif batch.place is not None:
                    batch.needs_packing = True
                index = gradient.index
                # The bytes belong to the storage: the tensor may get another one before they are reduced.
                batch.owners[index] = grad.untyped_storage()
                gradient.address = batch.addresses[index] = grad.data_ptr()
                gradient.submitted = grad
                gradient.version = grad._version
            else:
                batch.needs_packing = True
            batch.missing = missing = batch.missing - 1
            if missing == 0:
                self._flush(batch)

        return gradient_hook

    def _flush(self, batch: GradientBatch) -> None:
        """Submits a batch whose members are all ready."""
        if batch.needs_packing or (batch.place is not None and not self._reduces_on_device(batch)):
            self._submit(batch.members, batch.key)
        else:
            self.reduced = False
            self._handles.append(batch.submit(self.options))
            self._in_flight += batch.members
        batch.reset()

    def _reduces_on_device(self, batch: GradientBatch) -> bool:
        """Whether gradients of a batch, on a GPU, are reduced there."""
        options = self.options
        collective, group = ("allreduce", *options.reduction()), options.group()
        narrow = travel_type(options.compression)
        if narrow is not None:
            return _native.works_on_devices(group, collective, DTYPE_CODES[narrow])
        codes = {cast(int, gradient.dtype_code) for gradient in batch.members}
        return all(_native.works_on_devices(group, collective, code) for code in codes)

    def _submit(self, gradients: Sequence[Gradient], key: str | None = None) -> None:
        """Submits gradients of any kind, as they are now."""
        self.reduced = False
        run_ahead.sweep()
        self._handles += gradient_submission.submit(gradients, self.options, key)
        self._in_flight += gradients

    # Synchronisation

    @property
    def busy(self) -> bool:
        """Whether gradients are in flight, or ready and about to be submitted."""
        return bool(self._in_flight) or (
            self.has_new and any(gradient.passes_left <= 0 for gradient in self._gradients)
        )

    def synchronize(self) -> None:
        """Submits what has not been submitted yet, and waits until all gradients are reduced. On a GPU the current
        stream waits, and the host until they are queued, where it may run ahead (`run_ahead`)."""
        ready = len(self._in_flight)
        try:
            run_ahead.sweep()
            if ready < len(self._gradients):
                self._submit_rest()
            if self.declared != len(self._gradients):
                self._declare()
            for handle in reversed(self._handles):  # A thread that waits for the last one drives without interruption.
                handle.wait()
            passes = self.passes
            for gradient in self._in_flight:
                grad, address = gradient.submitted, gradient.address
                if (
                    gradient.parameter.grad is not grad
                    or grad._version != gradient.version  # type: ignore[union-attr]
                    or (address is not None and grad.data_ptr() != address)  # type: ignore[union-attr]
                ):
                    gradient_errors.raise_changed(gradient)
                if gradient.unpack is not None or gradient.frozen:
                    gradient_packing.finish(gradient)
                gradient.submitted = None
                gradient.passes_left = passes
        except BaseException:
            self.reset()
            raise
        in_flight, self._in_flight, self._handles = self._in_flight, [], []
        self.has_new, self.reduced = False, True
        if self._order.submitted_alone:
            self._learn_order(in_flight[:ready])

    def _submit_rest(self) -> None:
        """Submits groups and batches that are incomplete, and gradients that did not become ready. The order is that of
        the parameters, the same on all ranks where these are."""
        submitted = set(self._in_flight)
        for batch in self._batches:
            if not batch.members or batch.members[0] in submitted:
                continue
            if batch.key is not None:
                self._submit(batch.members, batch.key)
                submitted.update(batch.members)
                batch.reset()
            elif batch.missing < len(batch.members):
                # The members that are ready have waited for the others in vain.
                self._remove_unready(batch)
            else:
                batch.reset()
        rest = [gradient for gradient in self._gradients if gradient not in submitted]
        if rest:
            self._submit(rest)

    def _declare(self) -> None:
        """Says which gradients there are, once all have been submitted. A gradient that another rank lacks is an error
        then; otherwise this rank would wait for it for ever."""
        self.declared = len(self._gradients)
        # In an elastic job ranks come and go between the declarations of others, so these cannot be compared.
        if not elastic.enabled():
            _native.declare_gradients(self.options.group(), [gradient.name for gradient in self._gradients])

    def _remove_unready(self, batch: GradientBatch) -> None:
        members = batch.members
        for gradient in members:
            gradient.batch = None
        batch.set_members([gradient for gradient in members if gradient.passes_left <= 0])

    def _learn_order(self, ready: Sequence[Gradient]) -> None:
        """Forms new batches if enough gradients were submitted alone. `ready` is in the order of this iteration."""
        batches = self._order.learn(ready, len(self._gradients))
        if batches is None:
            return
        for gradient in self._gradients:
            gradient.batch = None
        self._batches = [GradientBatch(members) for members in batches]

    def reset(self) -> None:
        """Forgets what is in flight: the engine keeps its memory alive and drops the results."""
        for gradient in self._gradients:
            gradient.submitted = gradient.unpack = None
            gradient.frozen = False
            gradient.passes_left = self.passes
        for batch in self._batches:
            batch.reset()
        self._in_flight, self._handles, self._order.submitted_alone = [], [], 0
        self.has_new = self.reduced = False
