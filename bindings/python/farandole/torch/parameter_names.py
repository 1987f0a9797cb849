"""Names for parameters: what the gradients of one parameter meet under on all ranks.

Owns the checks of `named_parameters`. What comes out names every parameter of an optimizer, and no two alike; the texts
of the errors are those that scripts know.

Not here: whether the ranks use the same names. The engine finds out when they do not, and says who waits for whom.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch


def name_parameters(
    param_groups: Sequence[dict[str, Any]],
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
) -> dict[torch.Tensor, str]:
    """The name of every parameter, by the user's list or, without one, by its place in the optimizer."""
    if named_parameters is None:
        return {
            parameter: numbered(group_number, number)
            for group_number, group in enumerate(param_groups)
            for number, parameter in enumerate(group["params"])
        }
    pairs = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), "
            "usually produced by model.named_parameters()."
        )
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise ValueError(
            "Parameter names in named_parameters must be unique. Found duplicates: " + ", ".join(sorted(twice))
        )
    names = {parameter: name for name, parameter in sorted(pairs, key=lambda pair: pair[0])}
    unnamed = [
        (group_number, number, parameter)
        for group_number, group in enumerate(param_groups)
        for number, parameter in enumerate(group["params"])
        if parameter not in names
    ]
    if unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named. "
            "Python object ids: " + ", ".join(str(id(parameter)) for _, _, parameter in unnamed) + " (these are: "
            + ", ".join(f"parameter {n} of group {g}, shape {tuple(p.shape)}" for g, n, p in unnamed) + ")"
        )
    return names


def numbered(group_number: int, number: int) -> str:
    """The name of a parameter that was given none."""
    return f"allreduce.noname.{group_number}.{number}"
