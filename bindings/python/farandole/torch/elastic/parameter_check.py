"""Are the parameters of all ranks still the same? Off unless asked for.

Ranks begin with the same parameters and make the same updates, so they have the same bits; unless memory or an
arithmetic unit has failed, or the script has changed a parameter on one rank alone. The optimizer's own check
(`FARANDOLE_CHECK_PARAMETERS`) warns of that. This one raises, for trainings that are to end or to go on without the
rank that differs.

Every `every` steps all bits of all parameters are compared (`farandole::parameter_check`): one small collective, and
two more where they differ. Those on a device are copied to the host.

The rank that differs is the one in the minority. With two ranks, or two halves, nobody knows who is right, and all are
named. Buffers are not compared: statistics of batches differ between ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from farandole import _native
from farandole.elastic import native
from farandole.torch.parameter_pieces import pieces

__all__ = ["ParameterCheck", "ParametersDifferError"]


class ParametersDifferError(RuntimeError):
    """Parameters that should be the same on all ranks are not. `ranks` are those that differ from most."""

    def __init__(self, text: str, ranks: Sequence[int]) -> None:
        super().__init__(text)
        self.ranks = list(ranks)


class ParameterCheck:
    """Compares the parameters of all ranks every so many steps. All ranks call it, after the same steps.

    Arguments:
        parameters: `model.named_parameters()` or `model.parameters()`, say, in the same order on all ranks.
        every: compare at every so many calls; 0: never.
        evict: whether only the ranks that differ raise, and so leave the job to the others. Needs an elastic job and
            a majority; without one, all raise.
    """

    def __init__(
        self,
        parameters: Iterable[torch.Tensor | tuple[str, torch.Tensor]],
        every: int,
        *,
        evict: bool = False,
    ) -> None:
        self._parameters = [
            entry if isinstance(entry, tuple) else (f"number {number}", entry)
            for number, entry in enumerate(parameters)
        ]
        self._every = every
        self._evict = evict

    def __call__(self, step: int) -> None:
        """The step of this number is done. Raises `ParametersDifferError` if parameters were compared and differ."""
        if self._every <= 0 or step % self._every != 0:
            return
        if native.size() == 1:
            return
        found = _native.compare_parameters("elastic.parameters", pieces(self._parameters, whole=True))
        if found is None:
            return
        name, different = found
        is_certain = len(different) < native.size()
        if self._evict and native.enabled() and is_certain and native.rank() not in different:
            return
        raise ParametersDifferError(_text(step, name, different, native.size()), different)


def _text(step: int, name: str, different: Sequence[int], ranks: int) -> str:
    names = ", ".join(map(str, different))
    if len(different) == ranks:
        who = f"the ranks ({names}) have no majority, so it is open which of them are wrong"
    else:
        who = f"those of rank {names} differ from those of the other {ranks - len(different)}"
    return (
        f"After step {step} the parameters are not the same on all ranks: {who}. The first that differs is {name}. "
        "Memory or arithmetic of a host has failed, or the script changes parameters on some ranks only. Go on from "
        "the last checkpoint, without that host."
    )
