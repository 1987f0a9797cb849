"""When gradients leave, and in what company.

Owns the way of gradients from autograd to the engine and back. Backward calls a hook for each gradient that is
complete. A call into the engine for each would cost more than many a gradient is worth, and waiting for all would waste
the time that backward still takes; so gradients leave in *convoys*, whose members follow each other in backward. The
order is learned: in the first iteration every gradient leaves alone, and the order in which they left is then cut into
convoys. A large gradient is a convoy of its own and leaves at once.

Invariant: the result does not depend on what was learned. A convoy is only company on the way to the engine, where
every gradient has a request of its own, under its own name. Convoys may differ between ranks; what backward did not
bring is sent at delivery, as it is or as zeros. *A gradient that does not come* (an unused parameter, another branch of
a dynamic graph) leaves its convoy at delivery and travels alone from then on, so that it holds nobody up twice. When
many travel alone, the order is learned again, at ever longer intervals, so that a graph which never settles does not
cause learning for ever.

With groups of the user's, convoys are these groups instead, and all members are reduced together. That a sparse
gradient cannot be, because it is gathered and not reduced; it leaves its group, with a warning when that is found out.

Gradients on a device leave in convoys, too: the copies to the host that leave together are waited for together and
handed in with one call.

Hooks run in the threads of autograd, delivery in the thread that calls the optimizer; autograd returns from backward
after its last hook, and all of it happens under the interpreter's lock. So nothing here is locked.

Not here: what a gradient looks like on its way (`gradients`), and when results are needed (`optimizer`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch

from farandole import _native
from farandole.process_sets import ProcessSet, group_for
from farandole.torch import staging
from farandole.torch.compression import NoneCompressor
from farandole.torch.gradients import Gradient
from farandole.torch.staging import DTYPE_CODES

#: A convoy is complete when it holds this much. One call for 1 MiB costs nothing beside its reduction (about 0.1 ms
#: within a host), and backward of common networks makes some hundred such convoys at most.
CONVOY_BYTES = 1 << 20

#: A convoy is complete when it has this many members, so that networks of tiny parameters overlap, too. Every convoy
#: wakes the engine's worker, which disturbs backward where cores are scarce; a thousand gradients take backward some
#: milliseconds.
CONVOY_MEMBERS = 1024

#: How many deliveries lie between two lessons at most.
LONGEST_LEARNING_INTERVAL = 1024

#: So many gradients must have travelled alone for the order to be worth learning again.
RELEARN_FROM = 8


Staged: TypeAlias = tuple[Gradient, staging.Loan, tuple[int, ...]]
"""A gradient, what is lent for it, and in which shape it travels."""


@dataclass(frozen=True)
class Terms:
    """On which terms all gradients of an optimizer are reduced."""

    op: int
    prescale: float
    postscale: float
    compression: Any
    sparse_as_dense: bool
    process_set: ProcessSet

    def group(self) -> int:
        """The process set as the engine knows it."""
        return group_for(self.process_set, "DistributedOptimizer")


class Convoy:
    """Gradients that leave together, once all have come.

    `missing` counts those that have not; `addresses` is where those lie that have, and `owners` are their storages.
    `unusual` says that one of them cannot travel as it is; then all are sent one by one. `key` names a group of the
    user's.
    """

    __slots__ = ("addresses", "group", "key", "members", "missing", "native", "owners", "unusual")

    def __init__(self, members: Sequence[Gradient], key: str | None = None) -> None:
        self.members = list(members)
        self.key = key
        self.group: int | None = None
        self.native: _native.GradientBatch | None = None
        self.restart()

    def restart(self) -> None:
        """Waits for all members again."""
        self.missing = len(self.members)
        self.unusual = False
        self.addresses = [0] * self.missing
        self.owners: list[torch.UntypedStorage | None] = [None] * self.missing

    def let_go(self, gradients: Sequence[Gradient]) -> None:
        """Goes on without these."""
        for gradient in gradients:
            self.members.remove(gradient)
            gradient.convoy = None
        for place, gradient in enumerate(self.members):
            gradient.place = place
        self.native = None

    def prepare(self, terms: Terms) -> _native.GradientBatch:
        """What the engine needs to know of these members once, made again whenever something of it has changed."""
        group = terms.group()
        if self.native is None or self.group != group:
            # What travels as it is has an element type that the engine knows.
            members = [(gradient.name, gradient.shape, cast(int, gradient.code)) for gradient in self.members]
            self.native = _native.GradientBatch(members, terms.op, terms.prescale, terms.postscale, group, self.key)
            self.group = group
        return self.native


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
        self._convoys: list[Convoy] = []
        self._departed: list[Gradient] = []
        self._bundles: list[_native.BatchHandle | staging.AnyWork] = []
        self._grouped = False
        self._warned_of_sparse = False
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
        self._form_convoy(members, key)

    def _form_convoy(self, members: Sequence[Gradient], key: str | None = None) -> None:
        convoy = Convoy(members, key)
        self._convoys.append(convoy)
        for place, gradient in enumerate(convoy.members):
            gradient.convoy, gradient.place = convoy, place

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
        """The function that backward calls whenever this gradient has been accumulated. Called for every gradient of
        every iteration: it does as little as it can, and it looks at the gradient now, while the processor has it at
        hand."""
        plain = self.terms.compression is NoneCompressor

        def gradient_is_there(parameter: torch.Tensor) -> None:
            if self.held:
                return
            self.begun = True
            gradient.passes_left = passes_left = gradient.passes_left - 1
            if passes_left > 0:
                return
            if passes_left < 0:
                refuse_another_pass()
            convoy = gradient.convoy
            if convoy is None:
                self._alone += 1
                self._send((gradient,))
                return
            grad: Any = parameter.grad  # A tensor: its hook runs.
            if plain and gradient.travels_as_it_is(grad):
                place = gradient.place
                # The bytes belong to the storage: the tensor may get another one before they are reduced.
                convoy.owners[place] = grad.untyped_storage()
                gradient.address = convoy.addresses[place] = grad.data_ptr()
                gradient.sent = grad
                gradient.version = grad._version
            else:
                convoy.unusual = True
            convoy.missing = missing = convoy.missing - 1
            if missing == 0:
                self._depart(convoy)

        return gradient_is_there

    def _depart(self, convoy: Convoy) -> None:
        """Sends a convoy that is complete."""
        if convoy.unusual:
            self._send(convoy.members, convoy.key)
        else:
            self.delivered = False
            self._bundles.append(convoy.prepare(self.terms).submit(convoy.addresses, tuple(convoy.owners)))
            self._departed += convoy.members
        convoy.restart()

    def _send(self, gradients: Sequence[Gradient], key: str | None = None) -> None:
        """Hands gradients of any kind to the engine, as they are now."""
        self.delivered = False
        terms = self.terms
        plain = terms.compression is NoneCompressor
        travelling: list[tuple[Gradient, torch.Tensor, tuple[int, ...]]] = []
        staged: list[tuple[Gradient, torch.Tensor]] = []
        for gradient in gradients:
            grad = gradient.parameter.grad
            if grad is None:
                grad = gradient.provide()
            if grad.requires_grad:
                refuse_a_graph(gradient)
            gradient.note_sent(grad)
            self._departed.append(gradient)
            if plain and gradient.travels_as_it_is(grad):
                travelling.append((gradient, grad, gradient.shape))
                continue
            packed = gradient.pack(grad, terms)
            if packed is None:
                if key is not None:
                    self._warn_of_sparse(gradient)
            elif staging.is_on_device(packed):
                staged.append((gradient, packed))
            else:
                travelling.append((gradient, packed, tuple(packed.shape)))
        if staged:
            if key is not None:
                # The group is handed in with one call, so the others wait for the device, too.
                loans = self._stage(staged)
                loans += [(gradient, staging.Loan(memory, memory), shape) for gradient, memory, shape in travelling]
                self._hand_in_staged(loans, key)
                return
            self._hand_in_staged(self._stage(staged), None)
        if travelling:
            tensors = [
                (gradient.name, memory.data_ptr(), shape, DTYPE_CODES[memory.dtype], memory.untyped_storage())
                for gradient, memory, shape in travelling
            ]
            self._bundles.append(
                _native.allreduce_batch(tensors, terms.op, terms.prescale, terms.postscale, terms.group(), key)
            )

    def _stage(self, staged: Sequence[tuple[Gradient, torch.Tensor]]) -> list[Staged]:
        """Begins to copy what lies on a device."""
        loans = staging.lend_together([memory for _, memory in staged])
        for (gradient, _), loan in zip(staged, loans, strict=True):
            gradient.stage(loan)
        return [(gradient, loan, tuple(loan.host.shape)) for (gradient, _), loan in zip(staged, loans, strict=True)]

    def _hand_in_staged(self, staged: Sequence[Staged], key: str | None) -> None:
        """Has the engine asked, with one call, as soon as all copies are there."""
        terms, group = self.terms, self.terms.group()
        tensors = []
        for gradient, loan, shape in staged:
            address, _, code, owner = loan.words()
            tensors.append((gradient.name, address, shape, code, owner))
        self._bundles.append(
            staging.submit_batch(
                [loan for _, loan, _ in staged],
                lambda: _native.allreduce_batch(tensors, terms.op, terms.prescale, terms.postscale, group, key),
            )
        )

    def _warn_of_sparse(self, gradient: Gradient) -> None:
        """Says once that a group does not hold for this gradient."""
        if self._warned_of_sparse:
            return
        self._warned_of_sparse = True
        warnings.warn(
            f"groups: the gradient of {gradient.name.removeprefix('allreduce.')!r} is sparse. Sparse gradients are "
            "gathered one by one, so it is not reduced together with its group; the other members are. Pass "
            "sparse_as_dense=True to have it reduced with its group.",
            stacklevel=2,
        )

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
            for bundle in reversed(self._bundles):  # Whoever waits for the last one drives without interruption.
                bundle.wait()
            passes = self.passes
            for gradient in self._departed:
                grad, address = gradient.sent, gradient.address
                if (
                    gradient.parameter.grad is not grad
                    or grad._version != gradient.version  # type: ignore[union-attr]
                    or (address is not None and grad.data_ptr() != address)  # type: ignore[union-attr]
                ):
                    gradient.complain()
                if gradient.arrive is not None or gradient.frozen:
                    gradient.finish()
                gradient.sent = None
                gradient.passes_left = passes
        except BaseException:
            self.forget()
            raise
        departed, self._departed, self._bundles = self._departed, [], []
        self.begun, self.delivered = False, True
        if self._alone:
            self._consider_learning(departed[:came])

    def _send_the_rest(self) -> None:
        """Sends what is still here: groups and convoys that are incomplete, and gradients that did not come. The order
        is that of the parameters, the same on all ranks where these are."""
        away = set(self._departed)
        for convoy in self._convoys:
            if convoy.members and convoy.members[0] not in away:
                if convoy.key is not None:
                    self._send(convoy.members, convoy.key)
                    away.update(convoy.members)
                elif convoy.missing < len(convoy.members):
                    # Those who came have waited for the others in vain.
                    convoy.let_go([member for member in convoy.members if member.passes_left > 0])
                convoy.restart()
        rest = [gradient for gradient in self._gradients if gradient not in away]
        if rest:
            self._send(rest)

    def _consider_learning(self, came: list[Gradient]) -> None:
        """Cuts the order in which gradients came into convoys, if enough of them travelled alone."""
        alone, self._alone = self._alone, 0
        self._deliveries_until_learning -= 1
        if self._grouped or alone < min(RELEARN_FROM, len(self._gradients)) or self._deliveries_until_learning > 0:
            return
        self._deliveries_until_learning = self._learning_interval
        self._learning_interval = min(2 * self._learning_interval, LONGEST_LEARNING_INTERVAL)
        for gradient in self._gradients:
            gradient.convoy = None
        self._convoys = []
        for members in cut(came):
            self._form_convoy(members)

    def forget(self) -> None:
        """Forgets what is on its way: the engine keeps its memory alive and drops the results."""
        for gradient in self._gradients:
            gradient.sent = gradient.arrive = None
            gradient.frozen = False
            gradient.passes_left = self.passes
        for convoy in self._convoys:
            convoy.restart()
        self._departed, self._bundles, self._alone = [], [], 0
        self.begun = self.delivered = False


def cut(order: Sequence[Gradient]) -> list[list[Gradient]]:
    """Cuts an order of gradients into convoys. Large ones are on their own; small ones wait for each other across
    them."""
    convoys: list[list[Gradient]] = []
    small: list[Gradient] = []
    small_bytes = 0
    for gradient in order:
        if gradient.size_bytes >= CONVOY_BYTES:
            convoys.append([gradient])
            continue
        small.append(gradient)
        small_bytes += gradient.size_bytes
        if small_bytes >= CONVOY_BYTES or len(small) >= CONVOY_MEMBERS:
            convoys.append(small)
            small, small_bytes = [], 0
    if small:
        convoys.append(small)
    return convoys


def refuse_another_pass() -> None:
    """A gradient was accumulated while it travels."""
    raise AssertionError(
        "Gradients were computed more than backward_passes_per_step times before call to step(). Increase "
        "backward_passes_per_step to accumulate gradients locally. (optimizer.no_sync() accumulates, too.)"
    )


def refuse_a_graph(gradient: Gradient) -> None:
    """A gradient is a function of other tensors."""
    raise AssertionError(
        f"The gradient of {gradient.name!r} is part of a graph itself (backward was called with create_graph=True); it "
        "cannot be reduced in place."
    )
