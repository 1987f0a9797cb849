"""Which parameters an optimizer reduces gradients of, under which names, and in which groups.

Parameters may be added, frozen and unfrozen at any time: a parameter that requires no gradients is kept until it does.

Not here: what happens to gradients (`gradient_queue`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from farandole.torch.functions import broadcast_object
from farandole.torch.gradient_queue import GradientQueue
from farandole.torch.grouping import Groups, named_groups
from farandole.torch.parameter_names import name_parameters, numbered


class ParameterRegistry:
    """The parameters of one optimizer."""

    def __init__(
        self,
        queue: GradientQueue,
        param_groups: Sequence[dict[str, Any]],
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
    ) -> None:
        self._queue = queue
        #: The name of each parameter.
        self.names = name_parameters(param_groups, named_parameters)
        #: Parameters that do not require gradients, by name.
        self.frozen: dict[torch.Tensor, str] = {}

    def register(self, group_number: int, parameters: Iterable[torch.Tensor]) -> None:
        """Registers the parameters of one of the optimizer's groups with the queue. One without a name is numbered."""
        for number, parameter in enumerate(parameters):
            name = self.names.setdefault(parameter, numbered(group_number, number))
            if parameter.requires_grad:
                self._queue.register(parameter, name)
            else:
                self.frozen[parameter] = name

    def register_unfrozen(self) -> None:
        """Registers parameters that did not require gradients so far."""
        for parameter in [parameter for parameter in self.frozen if parameter.requires_grad]:
            self._queue.register(parameter, self.frozen.pop(parameter))

    def compared(self, param_groups: Sequence[dict[str, Any]]) -> list[tuple[str, torch.Tensor]]:
        """The parameters that are the same on all ranks: those of the optimizer, and what else was named and is
        frozen."""
        own = {
            parameter: numbered(group_number, number)
            for group_number, group in enumerate(param_groups)
            for number, parameter in enumerate(group["params"])
        }
        frozen = {parameter: name for parameter, name in self.names.items() if not parameter.requires_grad}
        return [(self.names.get(parameter, name), parameter) for parameter, name in {**own, **frozen}.items()]

    def form_groups(self, groups: Groups) -> None:
        """Puts gradients into the user's groups, in the order that the first rank has them in."""
        process_set = self._queue.options.process_set
        names = self._queue.by_name().keys()
        first = process_set.ranks[0] if process_set.ranks else 0
        order = broadcast_object(list(names), first, name="DistributedOptimizer.groups", process_set=process_set)
        if set(order) != set(names):
            raise ValueError(
                "groups need the same parameters on all ranks; these are not everywhere: "
                + ", ".join(sorted(set(order) ^ set(names)))
            )
        for group in named_groups(groups, self.names, order):
            self._queue.group(group, key="group." + group[0])
