"""When gradients leave, and in what company.

Owns the way of gradients from autograd to the engine and back. Backward calls a hook for each gradient that is complete. A call into
the engine for each would cost more than many a gradient is worth, and waiting for all would waste the time that
backward still takes; so gradients leave in *buckets*, whose members follow each other in backward. The order is learned: in the
first iteration every gradient leaves alone, and the order in which they left is then cut into buckets. A large gradient
is a bucket of its own and leaves at once.

Invariant: the result does not depend on what was learned. A bucket is only company on the way to the engine, where every
gradient has a request of its own, under its own name. Buckets may differ between ranks; what backward did not bring is sent at
delivery, as it is or as zeros. *A gradient that does not come* (an unused parameter, another branch of a dynamic graph)
leaves its bucket at delivery and travels alone from then on, so that it holds nobody up twice. When many travel alone, the order is
learned again, at ever longer intervals, so that a graph which never settles does not cause learning for ever.

With groups of the user's, buckets are these groups instead, and all members are reduced together.

Hooks run in the threads of autograd, delivery in the thread that calls the optimizer; autograd returns from backward after its last
hook, and all of it happens under the interpreter's lock. So nothing here is locked.

Not here: what a gradient looks like on its way (`gradients`), and when results are needed (`optimizer`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from farandole import _native
from farandole.process_sets import ProcessSet
from farandole.torch.compression import NoneCompressor
from farandole.torch.gradients import Gradient
from farandole.torch.staging import DTYPE_CODES

#: A bucket is closed when it holds this much. One call for 1 MiB costs nothing beside its reduction (about 0.1 ms within a host), and
#: backward of common networks makes some hundred such buckets at most.
BUCKET_BYTES = 1 << 20

#: A bucket is closed when it has this many members, so that networks of tiny parameters overlap, too.
BUCKET_MEMBERS = 256

#: How many deliveries lie between two lessons at most.
LONGEST_LEARNING_INTERVAL = 1024

#: So many gradients must have travelled alone for the order to be worth learning again.
RELEARN_FROM = 8


@dataclass(frozen=True)
class Terms:
    """On which terms all gradients of an optimizer are reduced."""

    op: int
    prescale: float
    postscale: float
    compression: Any
    sparse_as_dense: bool
    process_set: ProcessSet


class Bucket:
    """Gradients that leave together, once all have come. `missing` counts those that have not; `key` names a group of the user's."""

    __slots__ = ("key", "members", "missing")

    def __init__(self, members: Sequence[Gradient], key: str | None = None) -> None:
        self.members = list(members)
        self.missing = len(self.members)
        self.key = key


class Outbox:
    """The gradients of one optimizer, on their way and at home."""

    def __init__(self, terms: Terms, passes: int) -> None:
        self.terms = terms
        self.passes = passes
        #: Whether backward only accumulates (`no_sync`).
        self.held = False
        #: Whether backward has brought anything since the last delivery.
        self.begun = False
        #: Whether all gradients have come back and none has left since.
        self.delivered = False
        self._gradients: list[Gradient] = []
        self._hooks: list[Any] = []
        self._departed: list[Gradient] = []
        self._handles: list[_native.Handle] = []
        self._buckets: list[Bucket] = []
        self._grouped = False
        self._alone = 0
        self._deliveries_until_learning = 0
        self._learning_interval = 1

    # Membership

    def adopt(self, parameter: torch.Tensor, name: str) -> Gradient:
        """Takes care of this parameter's gradients from now on."""
        gradient = Gradient(parameter, name, self.passes)
        self._gradients.append(gradient)
        self._hooks.append(parameter.register_post_accumulate_grad_hook(self._hook_of(gradient)))
        return gradient

    def group(self, members: Sequence[Gradient], key: str) -> None:
        """Makes these gradients a group that is always reduced together."""
        self._grouped = True
        self._form_bucket(members, key)

    def _form_bucket(self, members: Sequence[Gradient], key: str | None = None) -> None:
        bucket = Bucket(members, key)
        self._buckets.append(bucket)
        for gradient in bucket.members:
            gradient.bucket = bucket

    def by_name(self) -> dict[str, Gradient]:
        """All gradients by the names of their parameters."""
        return {gradient.name.removeprefix("allreduce."): gradient for gradient in self._gradients}

    def detach(self) -> None:
        """Lets go of all parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def set_passes(self, passes: int) -> None:
        """From now on so many backward passes make a gradient complete."""
        self.passes = passes
        for gradient in self._gradients:
            gradient.passes_left = passes

    # Departure

    def _hook_of(self, gradient: Gradient) -> Callable[[torch.Tensor], None]:
        """The function that backward calls whenever this gradient has been accumulated. Called for every gradient of every
        iteration, so it does as little as it can."""

        def gradient_is_there(_parameter: torch.Tensor) -> None:
            if self.held:
                return
            self.begun = True
            gradient.passes_left = passes_left = gradient.passes_left - 1
            if passes_left > 0:
                return
            bucket = gradient.bucket
            if passes_left < 0:
                refuse_another_pass()
            elif bucket is None:
                self._alone += 1
                self._send((gradient,))
            elif bucket.missing > 1:
                bucket.missing -= 1
            else:
                bucket.missing = len(bucket.members)
                self._send(bucket.members, bucket.key)

        return gradient_is_there

    def _send(self, gradients: Sequence[Gradient], key: str | None = None) -> None:
        """Hands gradients to the engine in one call. Each is the engine's until it is delivered."""
        self.delivered = False
        terms = self.terms
        plain = terms.compression is NoneCompressor
        op, prescale, postscale = terms.op, terms.prescale, terms.postscale
        group = terms.process_set.process_set_id
        requests: list[Any] = []
        for gradient in gradients:
            grad = gradient.parameter.grad
            if grad is None:
                grad = gradient.provide()
            if grad.requires_grad:
                raise AssertionError(
                    f"The gradient of {gradient.name!r} is part of a graph itself (backward was called with create_graph=True); "
                    "it cannot be reduced in place."
                )
            gradient.sent = grad
            gradient.version = grad._version
            self._departed.append(gradient)
            if plain and gradient.travels_as_it_is(grad):
                memory: torch.Tensor | None = grad
                shape, code = gradient.shape, gradient.code
            else:
                memory = gradient.pack(grad, terms)
                if memory is None:
                    continue
                shape, code = tuple(memory.shape), DTYPE_CODES[memory.dtype]
            requests.append(
                (gradient.name, memory.data_ptr(), shape, code, memory, op, prescale, postscale, group, None, 0, None)
            )
        if key is not None:
            batch = (key, len(requests))
            requests = [(*request[:9], batch, *request[10:]) for request in requests]
        self._handles += _native.allreduce_many(requests)

    # Delivery

    @property
    def busy(self) -> bool:
        """Whether gradients are on their way, or complete and about to leave."""
        return bool(self._departed) or (self.begun and any(gradient.passes_left <= 0 for gradient in self._gradients))


    def deliver(self) -> None:
        """Sends whatever has not left yet, and waits until everything is back."""
        came = len(self._departed)
        try:
            if came < len(self._gradients):
                self._send_the_rest()
            _native.wait_all(self._handles)
            passes = self.passes
            for gradient in self._departed:
                gradient.take_back()
                gradient.passes_left = passes
        except BaseException:
            self.forget()
            raise
        departed, self._departed, self._handles = self._departed, [], []
        self.begun, self.delivered = False, True
        self._consider_learning(departed[:came])

    def _send_the_rest(self) -> None:
        """Sends what is still here: groups and buckets that are incomplete, and gradients that did not come. The order is that of the
        parameters, the same on all ranks where these are."""
        for bucket in self._buckets:
            if bucket.members and bucket.members[0].sent is None:
                self._close_early(bucket)
        rest = [gradient for gradient in self._gradients if gradient.sent is None]
        if rest:
            self._send(rest)

    def _close_early(self, bucket: Bucket) -> None:
        """Sends a group as it is. Lets those of a bucket go who were waited for in vain."""
        if bucket.key is not None:
            self._send(bucket.members, bucket.key)
        elif bucket.missing < len(bucket.members):
            for gradient in [member for member in bucket.members if member.passes_left > 0]:
                bucket.members.remove(gradient)
                gradient.bucket = None
        bucket.missing = len(bucket.members)

    def _consider_learning(self, came: list[Gradient]) -> None:
        """Cuts the order in which gradients came into buckets, if enough of them travelled alone."""
        alone, self._alone = self._alone, 0
        self._deliveries_until_learning -= 1
        if self._grouped or alone < min(RELEARN_FROM, len(self._gradients)) or self._deliveries_until_learning > 0:
            return
        self._deliveries_until_learning = self._learning_interval
        self._learning_interval = min(2 * self._learning_interval, LONGEST_LEARNING_INTERVAL)
        for gradient in self._gradients:
            gradient.bucket = None
        self._buckets = []
        for members in cut(came):
            self._form_bucket(members)

    def forget(self) -> None:
        """Forgets what is on its way: the engine keeps its memory alive and drops the results."""
        for gradient in self._gradients:
            gradient.sent = gradient.arrive = None
            gradient.frozen = False
            gradient.passes_left = self.passes
        for bucket in self._buckets:
            bucket.missing = len(bucket.members)
        self._departed, self._handles, self._alone = [], [], 0
        self.begun = self.delivered = False


def cut(order: Sequence[Gradient]) -> list[list[Gradient]]:
    """Cuts an order of gradients into buckets. Large ones are on their own; small ones wait for each other across them."""
    buckets: list[list[Gradient]] = []
    small: list[Gradient] = []
    small_bytes = 0
    for gradient in order:
        if gradient.size_bytes >= BUCKET_BYTES:
            buckets.append([gradient])
            continue
        small.append(gradient)
        small_bytes += gradient.size_bytes
        if small_bytes >= BUCKET_BYTES or len(small) >= BUCKET_MEMBERS:
            buckets.append(small)
            small, small_bytes = [], 0
    if small:
        buckets.append(small)
    return buckets


def refuse_another_pass() -> None:
    """A gradient was accumulated while it travels."""
    raise AssertionError(
        "Gradients were computed more than backward_passes_per_step times before call to step(). Increase "
        "backward_passes_per_step to accumulate gradients locally. (optimizer.no_sync() accumulates, too.)"
    )
