"""Are the parameters of all ranks still the same? Off unless asked for.

Ranks begin with the same parameters and make the same updates, so they have the same bits; unless memory or an
arithmetic unit has failed, or the script has changed a parameter on one rank alone. Nothing else notices that: the
training goes on, with a model that is not one.

Every `every` steps each rank computes a hash of all bits of its parameters, and one small collective puts them
together. The hash of a tensor is the sum of its words, which any single changed bit changes; those of all tensors are
combined in order. Cost: parameters are read once, which takes about as long as one element-wise operation on them.

The rank that differs is the one in the minority. With two ranks, or two halves, nobody knows who is right, and all are
named. Buffers are not compared: statistics of batches differ between ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from farandole.elastic import native

__all__ = ["ParameterCheck", "ParametersDifferError"]

_PRIME = (1 << 61) - 1
"""Hashes are numbers below this one: they fit into 64 bits with a sign, and into a sum with zeros."""

_FACTOR = 0x5851F42D4C957F2D % _PRIME
"""Tells the order of tensors. Any large odd number does; this one is known from random generators."""

_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
"""Integers of the size of an element, in which its bits are added."""


class ParametersDifferError(RuntimeError):
    """Parameters that should be the same on all ranks are not. `ranks` are those that differ from most."""

    def __init__(self, text: str, ranks: Sequence[int]) -> None:
        super().__init__(text)
        self.ranks = list(ranks)


class ParameterCheck:
    """Compares the parameters of all ranks every so many steps. All ranks call it, after the same steps.

    Arguments:
        parameters: `model.parameters()`, say.
        every: compare at every so many calls; 0: never.
        evict: whether only the ranks that differ raise, and so leave the job to the others. Needs an elastic job and
            a majority; without one, all raise.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], every: int, *, evict: bool = False) -> None:
        self._parameters = list(parameters)
        self._every = every
        self._evict = evict

    def __call__(self, step: int) -> None:
        """The step of this number is done. Raises `ParametersDifferError` if parameters were compared and differ."""
        if self._every <= 0 or step % self._every != 0:
            return
        hashes = [row[0] for row in native.gathered([fingerprint(self._parameters)], "parameters")]
        different = minority(hashes)
        if not different:
            return
        is_certain = len(different) < len(hashes)
        if self._evict and native.enabled() and is_certain and native.rank() not in different:
            return
        raise ParametersDifferError(_text(step, hashes, different), different)


def fingerprint(parameters: Iterable[torch.Tensor]) -> int:
    """A number that depends on all bits of all parameters."""
    combined = 0
    for parameter in parameters:
        tensor = parameter.detach()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        words = tensor.contiguous().view(_WORDS[tensor.element_size()])
        combined = (combined * _FACTOR + int(words.sum(dtype=torch.int64)) + 1) % _PRIME
    return combined


def minority(hashes: Sequence[int]) -> list[int]:
    """The ranks whose hash is not that of more than half; all of them if no hash is."""
    value, count = Counter(hashes).most_common(1)[0]
    if count == len(hashes):
        return []
    if 2 * count <= len(hashes):
        return list(range(len(hashes)))
    return [rank for rank, other in enumerate(hashes) if other != value]


def _text(step: int, hashes: Sequence[int], different: Sequence[int]) -> str:
    names = ", ".join(map(str, different))
    if len(different) == len(hashes):
        who = f"the ranks ({names}) have no majority, so it is open which of them are wrong"
    else:
        who = f"those of rank {names} differ from those of the other {len(hashes) - len(different)}"
    return (
        f"After step {step} the parameters are not the same on all ranks: {who}. Memory or arithmetic of a host has "
        "failed, or the script changes parameters on some ranks only. Go on from the last checkpoint, without that "
        "host."
    )
