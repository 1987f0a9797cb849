"""Tensors that lose their memory while the engine works on it: the engine's bytes live on, and whoever took them away
is told.

Each test is a job of two ranks. Rank 1 asks for an operation only after rank 0 has asked for it and has then replaced
the memory, so that the engine touches it afterwards for certain. The tensors are large: their memory goes back to the
system at once, and a touch is the end of the process.
"""

from __future__ import annotations

import textwrap

import pytest
from jobs import Job, run_job

pytestmark = pytest.mark.timeout(180)

BEGIN = """
    import gc
    import numpy as np
    import torch
    import farandole.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), 1 << 23

    def ones():
        return torch.full((size,), 1.0 + rank)

    def meet(ask, take_away, tensors):
        # Returns what came of the operation on rank 0, which has replaced the memory of its tensors meanwhile.
        if rank == 0:
            handle = ask(tensors)
            take_away(tensors)
            gc.collect()
            hvd.barrier()
        else:
            hvd.barrier()
            handle = ask(tensors)
        try:
            return hvd.synchronize(handle)
        except ValueError as error:
            assert rank == 0, error
            return str(error)
"""


def run(script: str) -> Job:
    whole = textwrap.dedent(BEGIN) + textwrap.dedent(script) + "\nprint('over')\n"
    job = run_job(2, whole, seconds=150)
    assert job.code == 0 and job.lines(0) == job.lines(1) == ["over"], f"{job.output}\n{job.errors}"
    return job


def test_memory_that_is_replaced_under_way_outlives_the_operation_which_says_so() -> None:
    run(
        """
        def by_data(t): t.data = torch.zeros(1)
        def by_set(t): t.set_(torch.zeros(1))
        def by_empty_set(t): t.set_()

        operations = {
            "allreduce.x": lambda t: hvd.allreduce_async_(t, name="x", op=hvd.Sum),
            "broadcast.x": lambda t: hvd.broadcast_async_(t, 1, name="x"),
        }
        for name, ask in operations.items():
            for take_away in (by_data, by_set, by_empty_set):
                said = meet(ask, take_away, ones())
                if rank == 0:
                    assert f"memory of tensor '{name}' was replaced" in said, said
                else:
                    assert bool((said == (3.0 if "allreduce" in name else 2.0)).all())
        """
    )


def test_modules_that_are_converted_under_way() -> None:
    run(
        """
        def network():
            return torch.nn.Linear(1, size, bias=False).requires_grad_(False)

        ask = lambda module: hvd.allreduce_async_(module.weight, name="weight", op=hvd.Sum)
        for take_away in (lambda module: module.half(), lambda module: module.to(torch.float64)):
            said = meet(ask, take_away, network())
            assert rank == 1 or "memory of tensor 'allreduce.weight' was replaced" in said, said
        """
    )


def test_groups_and_tensors_that_are_only_read() -> None:
    run(
        """
        def by_data(tensors):
            tensors[1].data = torch.zeros(1)

        pair = lambda: [ones(), ones(), ones()]
        said = meet(lambda ts: hvd.grouped_allreduce_async_(ts, name="g", op=hvd.Sum), by_data, pair())
        assert rank == 1 or "memory of tensor 'grouped_allreduce.g_2of3' was replaced" in said, said
        # The engine has what the tensors were when they were handed in, and the result is another tensor's.
        for total in meet(lambda ts: hvd.grouped_allreduce_async(ts, name="g", op=hvd.Sum), by_data, pair()):
            assert bool((total == 3.0).all())
        def all_by_data(t):
            t.data = torch.zeros(1)
        assert bool((meet(lambda t: hvd.allreduce_async(t, name="x", op=hvd.Sum), all_by_data, ones()) == 3.0).all())
        assert bool((meet(lambda t: hvd.broadcast_async(t, 0, name="x"), all_by_data, ones()) == 1.0).all())
        gathered = meet(lambda t: hvd.allgather_async(t, name="x"), all_by_data, ones())
        assert bool((gathered[:size] == 1.0).all()) and bool((gathered[size:] == 2.0).all())
        rows, _ = meet(lambda t: hvd.alltoall_async(t, name="x"), all_by_data, ones())
        assert bool((rows[: size // 2] == 1.0).all()) and bool((rows[size // 2 :] == 2.0).all())
        assert bool((meet(lambda t: hvd.reducescatter_async(t, name="x", op=hvd.Sum), all_by_data, ones()) ==
        3.0).all())
        """
    )


def test_memory_of_numpy_and_of_dlpack() -> None:
    run(
        """
        for adopt in (torch.from_numpy, torch.from_dlpack):
            array = np.full(size, 1.0 + rank, dtype=np.float32)
            tensor = adopt(array)

            def take_away(tensor):
                tensor.data = torch.zeros(1)

            if rank == 1:
                total = meet(lambda t: hvd.allreduce_async_(t, name="x", op=hvd.Sum), take_away, tensor)
                assert bool((total == 3.0).all()) and (array == 3.0).all()
                continue
            box = [array]
            del array

            def take_away_both(tensor):
                tensor.data = torch.zeros(1)
                try:
                    box[0].resize(2 * size)
                except ValueError:
                    pass
                else:
                    raise AssertionError("numpy has moved an array that is lent")
                box.clear()

            said = meet(lambda t: hvd.allreduce_async_(t, name="x", op=hvd.Sum), take_away_both, tensor)
            assert "memory of tensor 'allreduce.x' was replaced" in said, said
        """
    )


def test_what_would_move_memory_inside_its_storage_is_refused_until_the_operation_is_over() -> None:
    run(
        """
        ways = {
            "resize_": lambda t: t.resize_(4 * size),
            "resize_as_": lambda t: t.resize_as_(torch.empty(4 * size)),
            "UntypedStorage.resize_": lambda t: t.untyped_storage().resize_(0),
            "TypedStorage.resize_": lambda t: t._typed_storage()._resize_(0),
            "share_memory_": lambda t: t.share_memory_(),
            "of a view": lambda t: t[size // 2 :].resize_(4 * size),
        }
        for way, move in ways.items():
            tensor = ones()

            def refused(t):
                try:
                    move(t)
                except RuntimeError as error:
                    assert "'allreduce.x'" in str(error) and "synchronize()" in str(error), error
                else:
                    raise AssertionError(f"{way} has moved memory that is lent")
                t[:4].resize_(2)  # Fits, and moves nothing.

            total = meet(lambda t: hvd.allreduce_async_(t, name="x", op=hvd.Sum), refused, tensor)
            assert bool((total == 3.0).all()), way
            move(total)  # It is the user's again.
        # Operations that nobody waits for hold their memory, too.
        dropped = ones()
        if rank == 0:
            hvd.allreduce_async_(dropped, name="dropped", op=hvd.Sum)
            from farandole.torch import handles
            handles._pending.clear()
            gc.collect()
            try:
                dropped.resize_(4 * size)
            except RuntimeError as error:
                assert "allreduce.dropped" in str(error), error
            else:
                raise AssertionError("moved")
            hvd.barrier()
        else:
            hvd.barrier()
            hvd.allreduce_(dropped, name="dropped", op=hvd.Sum)
        hvd.barrier()  # Nobody leaves before it is over.
        """
    )
