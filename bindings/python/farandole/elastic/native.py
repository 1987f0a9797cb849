"""What elastic training asks of the engine: all of it, and nothing else in the package asks for more.

Three questions: is this job elastic (`enabled`)? Do processes wait to join (`candidates`)? What do the ranks know
together (`largest`, `begin_largest`, `gathered`, each one small collective)? One act: `next_generation`, which leaves
the job as it is now and becomes a rank of it as it is next. And what is written down of a recovery, for reports: when
all ranks have the same state again (`note_synchronised`), when a step is made (`note_stepped`), and what has become of
the step under way (`note_step_lost`).

Invariant: `largest` and `gathered` give the same answer on all ranks or raise `FarandoleError`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

from farandole import _native
from farandole.basics import basics
from farandole.exceptions import HorovodInternalError

_INT64 = 8
"""The engine's number of this element type."""


@functools.cache
def enabled() -> bool:
    """Whether ranks may leave and join this job while it runs. Asked in every step, and it never changes."""
    return _native.elastic_enabled() or _native.switch_setting("HOROVOD_ELASTIC")


def candidates() -> int:
    """How many processes the next generation would take in; known to one rank, and 0 on all others. Cheap."""
    return _native.elastic_candidates()


def fence() -> int:
    """Raises `RankLostError` on a rank that the job has replaced; call it last before a file that one rank
    writes takes its place:

        if hvd.rank() == 0:
            with open(unfinished, "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            hvd.elastic.fence()
            os.replace(unfinished, path)

    In an elastic job a majority of the generation's members has confirmed, after the call began, that this rank is in
    it; the result is the number of the generation. In a job of a fixed size and outside of one the result is 0 at once.
    It is not a collective: any rank may call it alone. It waits for one round of messages, and at most for the
    heartbeat timeout."""
    return 0 if _is_alone() else _native.elastic_fence()


def note_synchronised() -> None:
    """All ranks of this generation have the same state."""
    _native.elastic_stage("synchronised")


def note_stepped() -> None:
    """The first step of this generation is made."""
    _native.elastic_stage("stepped")


def note_step_lost(fate: Literal["repeated", "dropped"]) -> None:
    """The step under way when the last generation ended was not made."""
    _native.elastic_step_lost(fate)


def next_generation() -> None:
    """Leaves the job and enters its next generation. Rank and size may be others afterwards.

    What this rank still had under way fails, and nobody wants to know: a failure is why it is here.
    """
    try:
        basics.shutdown()
    except HorovodInternalError:
        pass
    basics.init_again()


def is_rank() -> bool:
    """Whether this process is a rank of a job now."""
    return _native.is_initialized()


def joins_later() -> bool:
    """Whether this process is going to be a rank of its elastic job, and is none yet."""
    return _native.joins_later()


def may_stream() -> bool:
    """Whether the state of a training can be streamed: not in a job of a fixed size. Raises in a process that has
    joined before it has a model."""
    if not _native.elastic_enabled():
        return False
    if not basics.was_to_join_later:
        raise ValueError(
            "a training is streamed to processes that have a model before they join: call "
            'hvd.init(elastic_join="later")'
        )
    return True


def join_job(follow: Callable[[Any], None] | None) -> None:
    """Becomes a rank, if this process was to be one later. `follow` gets a state before (`follower`)."""
    basics.join_job(follow)


def rank() -> int:
    """This process's number in the job; 0 outside of one. Raises before it has joined."""
    return 0 if _is_alone() else _native.rank()


def size() -> int:
    """Number of ranks of the job; 1 outside of one. Raises before this process has joined."""
    return 1 if _is_alone() else _native.size()


def begin_largest(values: Sequence[int], name: str) -> Callable[[], list[int]]:
    """Begins to find the largest of all ranks' values, place by place. The result waits for them, and gives them."""
    if _is_alone():
        return lambda: list(values)
    memory, handle = _reduce(values, name, basics.Max)

    def finish() -> list[int]:
        handle.wait()
        return list(memory)

    return finish


def largest(values: Sequence[int], name: str) -> list[int]:
    """The largest of all ranks' values, place by place."""
    return begin_largest(values, name)()


def gathered(values: Sequence[int], name: str) -> list[list[int]]:
    """All ranks' values, in the order of ranks. All have the same number of them."""
    if _is_alone():
        return [list(values)]
    count, me = len(values), _native.rank()
    table = [0] * (count * _native.size())
    table[me * count : (me + 1) * count] = values
    # Everybody adds zeros to the others' rows: one collective, and no memory of the engine's to take over.
    memory, handle = _reduce(table, name, basics.Sum)
    handle.wait()
    return [list(memory[at : at + count]) for at in range(0, len(table), count)]


def _is_alone() -> bool:
    return not _native.is_initialized() and not _native.joins_later()


def _reduce(values: Sequence[int], name: str, op: int) -> tuple[Any, _native.Handle]:
    memory = (ctypes.c_int64 * len(values))(*values)
    address = ctypes.addressof(memory)
    handle = _native.allreduce(
        f"elastic.{name}", address, [len(values)], _INT64, memory, op, 1.0, 1.0, 0, None, 0, None
    )
    return memory, handle
