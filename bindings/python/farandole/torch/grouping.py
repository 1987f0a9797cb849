"""The user's groups of parameters: what `groups=` of an optimizer means.

Owns the check of the argument and its translation into lists of names. The names are the same on all ranks and each
group is known by its first, so ranks agree on groups without talking about them.

Not here: how a group is kept together (`gradient_queue`, `delta_optimizer`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

Groups = int | list[list[torch.Tensor]] | None


def check_groups(groups: Groups) -> None:
    """Refuses what is no grouping."""
    if groups is None or (isinstance(groups, int) and groups > 0):
        return
    if not isinstance(groups, list):
        raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
    seen = set()
    for parameter in (parameter for group in groups for parameter in group):
        if not isinstance(parameter, torch.Tensor):
            raise ValueError("groups must consist of torch.Tensor.")
        if id(parameter) in seen:
            raise ValueError("A parameter can only appear once in groups.")
        seen.add(id(parameter))


def named_groups(groups: Groups, names: Mapping[torch.Tensor, str], order: Sequence[str]) -> list[list[str]]:
    """The groups by the names of their parameters. Those of `order` that are in no list are on their own; others are
    left out."""
    if not isinstance(groups, list):
        return [part for part in split_evenly(order, groups or 1) if part]
    known = set(order)
    listed = [[names.get(parameter, "") for parameter in group] for group in groups]
    named = [[name for name in group if name in known] for group in listed]
    inside = {name for group in named for name in group}
    return [group for group in named if group] + [[name] for name in order if name not in inside]


def split_evenly(items: Sequence[str], parts: int) -> list[list[str]]:
    """Cuts a list into so many parts, as equal as can be; the first ones have one more."""
    quotient, remainder = divmod(len(items), parts)
    ends = [(part + 1) * quotient + min(part + 1, remainder) for part in range(parts)]
    return [list(items[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
