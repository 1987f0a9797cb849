"""What is streamed of a training with PyTorch: a copy of the state, and what every step was made with.

Both are bytes: an object, and behind it the memory of tensors.

**Snapshot.** Tensors of the model, tensors and options of the optimizer, and the states of whatever else belongs to the
training; the same as `transfer` sends.

**Update.** Gradients as the optimizer found them (reduced, clipped, unscaled), with the options of its groups in that
moment (learning rates), and the states of everything else at the end of the block. Whoever has the state of before and
calls the optimizer with them gets the state of after, with the same bits: optimizers compute element by element.

**What is not in an update**: buffers, which differ between ranks, and whatever a script does to parameters by itself.
Closures, sparse gradients and parameters that were added meanwhile cannot be streamed (`Recorder.update` gives `None`).
Nobody believes that a replayed state is right: digests are compared (`transfer.send_what_differs`).
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import torch

from farandole.torch import functions
from farandole.torch.elastic import transfer
from farandole.torch.gradient_optimizer import _DistributedOptimizer

_LENGTH = struct.Struct("<Q")
"""Of the object."""


class Parts(NamedTuple):
    """What belongs to the state of a training."""

    model: Optional[torch.nn.Module]
    optimizer: torch.optim.Optimizer
    #: What has `state_dict` and `load_state_dict`, by name.
    others: Mapping[str, Any]

    @property
    def parameters(self) -> list[torch.Tensor]:
        """Of the optimizer, in its order."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def states(self) -> dict[str, Any]:
        """Of the others."""
        return {name: other.state_dict() for name, other in self.others.items()}

    def load_states(self, states: Mapping[str, Any]) -> None:
        """Of the others."""
        for name, state in states.items():
            if name in self.others:
                self.others[name].load_state_dict(state)


class Streamable(NamedTuple):
    """An object and tensors that are to be streamed."""

    head: bytes
    tensors: Sequence[torch.Tensor]

    @classmethod
    def of(cls, told: Any, tensors: Sequence[torch.Tensor]) -> Streamable:
        """`told` and these tensors, which are copied if they are elsewhere than in contiguous host memory."""
        pickled = pickle.dumps(told)
        on_host = [tensor.detach().cpu().contiguous() for tensor in tensors]
        return cls(_LENGTH.pack(len(pickled)) + pickled, on_host)

    def pieces(self) -> list[tuple[int, int, torch.Tensor]]:
        """Address, bytes and owner of the memory behind the object."""
        return transfer.pieces_of(self.tensors)


class _Content:
    """What has come of a `Streamable`."""

    def __init__(self, content: bytearray) -> None:
        self._content = content
        if len(content) < _LENGTH.size:
            raise ValueError("what a member has sent ends in the middle")
        (length,) = _LENGTH.unpack_from(content)
        self._at = _LENGTH.size + length
        if self._at > len(content):
            raise ValueError("what a member has sent ends in the middle")
        # It comes from a member of this job, over a channel that nobody else can write to.
        self.told = pickle.loads(memoryview(content)[_LENGTH.size : self._at])

    def next_into(self, place: torch.Tensor) -> None:
        """Fills a tensor with the next bytes."""
        size = place.numel() * place.element_size()
        if size == 0:
            return
        if self._at + size > len(self._content):
            raise ValueError("what a member has sent ends in the middle")
        came = torch.frombuffer(self._content, dtype=torch.uint8, count=size, offset=self._at)
        self._at += size
        is_direct = place.device.type == "cpu" and place.is_contiguous()
        into = place if is_direct else torch.empty(place.shape, dtype=place.dtype)
        into.reshape(-1).view(torch.uint8).copy_(came)
        if not is_direct:
            place.copy_(into)

    def check_left(self, size: int) -> None:
        """`ValueError` if there are not so many bytes."""
        if len(self._content) - self._at != size:
            raise ValueError(f"a member has sent {len(self._content) - self._at} bytes of tensors, and {size} are due")


def snapshot(parts: Parts) -> Streamable:
    """The whole state."""
    parameters = parts.parameters
    own = transfer.tensors_of(parts.model, parameters)
    structure = functions._structure(parts.optimizer, parameters)
    told = (transfer.description(own), structure, parts.states())
    live = [tensor for _, tensor in own] + transfer.optimizer_tensors(parts.optimizer, parameters)
    return Streamable.of(told, live)


def restore(parts: Parts, content: bytearray) -> None:
    """Becomes a state that was streamed. `ValueError`, and nothing has changed, if it does not fit."""
    came = _Content(content)
    theirs, structure, states = came.told
    parameters = parts.parameters
    own = transfer.tensors_of(parts.model, parameters)
    transfer.check_same(transfer.description(own), theirs, "a member")
    transfer.check_groups(parts.optimizer, structure[0], "a member")
    sizes = [value for state in structure[2].values() for value in state.values()]
    tensors = [value for value in sizes if isinstance(value, functions._TensorOf)]
    due = sum(tensor.numel() * tensor.element_size() for _, tensor in own)
    due += sum(torch.Size(value.shape).numel() * value.dtype.itemsize for value in tensors)
    came.check_left(due)
    with torch.no_grad():
        places = own + functions._take_over(parts.optimizer, parameters, *structure[1:])
        for _, place in places:
            came.next_into(place)
    parts.load_states(states)


class Recorder:
    """What the step under way is made with, as long as somebody wants it."""

    def __init__(self) -> None:
        self._made_with: Optional[tuple[list[dict[str, Any]], list[tuple[int, torch.Tensor]]]] = None
        self._is_refused = False

    def clear(self) -> None:
        """A block begins."""
        self._made_with, self._is_refused = None, False

    def optimizer_steps(self, parts: Parts, has_closure: bool) -> None:
        """The optimizer is about to make its step."""
        gradients = [(at, one.grad) for at, one in enumerate(parts.parameters) if one.grad is not None]
        if has_closure or any(gradient.layout != torch.strided for _, gradient in gradients):
            self._is_refused = True
            return
        options = functions._structure(parts.optimizer, [])[1]
        # Optimizers may write into gradients, scripts may clear them before the block ends, and schedulers may write
        # into rates.
        self._made_with = (copy.deepcopy(options), [(at, gradient.detach().clone()) for at, gradient in gradients])

    def update(self, parts: Parts) -> Optional[Streamable]:
        """What the block was made with; `None` if it cannot be streamed."""
        if self._is_refused:
            return None
        options, gradients = self._made_with or (None, [])
        what = [(at, tuple(gradient.shape), gradient.dtype) for at, gradient in gradients]
        return Streamable.of((options, what, parts.states()), [gradient for _, gradient in gradients])


def apply(parts: Parts, content: bytearray) -> None:
    """Makes the step of an update. `ValueError`, and nothing has changed, if it does not fit."""
    came = _Content(content)
    options, what, states = came.told
    if options is not None:
        _step(parts, came, options, what)
    parts.load_states(states)


def _step(parts: Parts, came: _Content, options: list[dict[str, Any]], what: list[Any]) -> None:
    parameters, optimizer = parts.parameters, parts.optimizer
    if len(options) != len(optimizer.param_groups):
        raise ValueError(f"{len(options)} parameter groups at a member, {len(optimizer.param_groups)} here")
    if any(at >= len(parameters) or tuple(parameters[at].shape) != shape for at, shape, _ in what):
        raise ValueError("gradients of a member do not have the shapes of the parameters here")
    came.check_left(sum(torch.Size(shape).numel() * dtype.itemsize for _, shape, dtype in what))
    for parameter in parameters:
        parameter.grad = None
    functions._take_options(optimizer, options)
    for at, _, dtype in what:
        gradient = torch.empty_like(parameters[at], dtype=dtype, requires_grad=False)
        came.next_into(gradient)
        parameters[at].grad = gradient
    is_ours = isinstance(optimizer, _DistributedOptimizer)
    with optimizer.skip_synchronize() if is_ours else contextlib.nullcontext():  # type: ignore[attr-defined]
        optimizer.step()
    for parameter in parameters:
        parameter.grad = None
