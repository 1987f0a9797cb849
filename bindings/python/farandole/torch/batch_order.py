"""Which gradients are submitted together: learned from the order in which backward makes them ready.

A large gradient is a batch of its own and is submitted at once. When many gradients are submitted alone, because a
graph has changed, the order is learned again, at ever longer intervals, so that a graph which never settles does not
cause learning for ever.

Not here: batches themselves, and when they are submitted (`gradient_queue`).
"""

from __future__ import annotations

from collections.abc import Sequence

from farandole.torch.gradients import Gradient

#: A batch is complete when it holds this much. One call for 1 MiB costs nothing beside its reduction (about 0.1 ms
#: within a host), and backward of common networks makes some hundred such batches at most.
BATCH_BYTES = 1 << 20

#: A batch is complete when it has this many members, so that networks of tiny parameters overlap, too. Each batch wakes
#: the engine's worker, which disturbs backward where cores are scarce; a thousand gradients take backward some
#: milliseconds.
BATCH_MEMBERS = 1024

#: The order is learned again after at most this many iterations.
MAX_LEARNING_INTERVAL = 1024

#: The order is learned again if at least this many gradients were submitted alone.
RELEARN_FROM = 8


class BatchOrder:
    """When the order is learned, and the batches that follow from it."""

    def __init__(self) -> None:
        #: How many gradients were submitted alone in this iteration.
        self.submitted_alone = 0
        #: Whether the user has said which gradients belong together.
        self.is_fixed = False
        self._iterations_left = 0
        self._interval = 1

    def learn(self, order: Sequence[Gradient], count: int) -> list[list[Gradient]] | None:
        """The batches for an iteration in which gradients, of `count` in all, became ready in this order. `None` if
        those of before are kept."""
        alone, self.submitted_alone = self.submitted_alone, 0
        self._iterations_left -= 1
        if self.is_fixed or alone < min(RELEARN_FROM, count) or self._iterations_left > 0:
            return None
        self._iterations_left = self._interval
        self._interval = min(2 * self._interval, MAX_LEARNING_INTERVAL)
        return split(order)


def split(order: Sequence[Gradient]) -> list[list[Gradient]]:
    """Splits an order of gradients into batches. Large ones are on their own; small ones wait for each other across
    them."""
    batches: list[list[Gradient]] = []
    small: list[Gradient] = []
    small_bytes = 0
    for gradient in order:
        if gradient.size_bytes >= BATCH_BYTES:
            batches.append([gradient])
            continue
        small.append(gradient)
        small_bytes += gradient.size_bytes
        if small_bytes >= BATCH_BYTES or len(small) >= BATCH_MEMBERS:
            batches.append(small)
            small, small_bytes = [], 0
    if small:
        batches.append(small)
    return batches
