"""Any number of operations in any order: MXNet's engine has few threads, and none of them waits for other ranks."""

from __future__ import annotations

import gc
import random

import mxnet as mx
import numpy as np
import pytest

import farandole.mxnet as hvd
from tensors import Floats, allreduce

pytestmark = [pytest.mark.timeout(90), pytest.mark.usefixtures("job")]


def test_hundreds_of_operations_in_opposite_orders() -> None:
    count = 400
    order = list(range(count)) if hvd.rank() % 2 == 0 else list(range(count - 1, -1, -1))
    results = {}
    for number in order:
        results[number] = hvd.allreduce(mx.nd.full((10,), number), op=hvd.Sum, name=f"turned.{number}")
    for number in range(count):
        assert results[number].asnumpy().tolist() == [float(number * hvd.size())] * 10


def test_every_kind_in_a_random_order_on_each_rank() -> None:
    chance = random.Random(hvd.rank())
    asked: dict[tuple[str, int], mx.nd.NDArray] = {}
    work = [(kind, number) for kind in ("allreduce", "broadcast", "reducescatter") for number in range(30)]
    chance.shuffle(work)
    for kind, number in work:
        array = mx.nd.ones((hvd.size(), 2)) * (hvd.rank() + number)
        more = {"broadcast": {"root_rank": number % hvd.size()}}.get(kind, {"op": hvd.Sum})
        asked[kind, number] = getattr(hvd, kind)(array, name=f"{number}", **more)
    for (kind, number), result in asked.items():
        total = sum(rank + number for rank in range(hvd.size()))
        wanted = number % hvd.size() + number if kind == "broadcast" else total
        assert (result.asnumpy() == wanted).all(), (kind, number)


def test_priorities_are_taken_and_differ_between_ranks() -> None:
    arrays = [mx.nd.full((100,), number) for number in range(50)]
    for number, array in enumerate(arrays):
        hvd.allreduce_(array, op=hvd.Sum, name=f"urgent.{number}", priority=number * (1 if hvd.rank() % 2 else -1))
    for number, array in enumerate(arrays):
        assert array.asnumpy()[0] == number * hvd.size()


def test_other_front_ends_of_this_process_use_the_same_engine() -> None:
    """They submit memory by its address, and find it beside MXNet's requests."""
    number, size = 50, hvd.size()
    of_mxnet = [hvd.allreduce(mx.nd.full((10,), step), op=hvd.Sum, name=f"mxnet.{step}") for step in range(number)]
    others = [Floats([float(step)]) for step in range(number)]
    handles = [allreduce(f"other.{step}", tensor) for step, tensor in enumerate(others)]
    for handle in reversed(handles):
        handle.wait()
    for step in range(number):
        assert others[step].values() == [float(step * size)] and of_mxnet[step].asnumpy()[0] == step * size


def test_operations_on_one_array_follow_each_other() -> None:
    array = mx.nd.ones((1000,))
    for step in range(5):
        hvd.allreduce_(array, op=hvd.Sum, name="again")
        array *= 0.5
    assert array.asnumpy()[0] == (hvd.size() / 2) ** 5


def test_arrays_that_nobody_holds_any_more_live_until_the_operation_is_over() -> None:
    results = []
    for number in range(50):
        array = mx.nd.random.uniform(shape=(1000,)) * 0 + number
        results.append(hvd.allreduce(array, op=hvd.Sum))
        del array
    for _ in range(50):
        hvd.allreduce_(mx.nd.ones((1000,)), op=hvd.Sum)
    gc.collect()
    assert [result.asnumpy()[0] for result in results] == [number * hvd.size() for number in range(50)]


def test_inputs_that_are_still_being_computed() -> None:
    array = mx.nd.ones((200, 200))
    for _ in range(10):
        array = mx.nd.dot(array, array) / 200
    result = hvd.allreduce(array, op=hvd.Sum) + hvd.allreduce(array * 2, op=hvd.Sum)
    assert np.allclose(result.asnumpy(), 3 * hvd.size())


def test_weights_that_onednn_keeps_in_its_own_order_are_sent_in_rows() -> None:
    """A convolution that only predicts leaves its weights in the order that suits oneDNN."""
    mx.random.seed(7)
    layer = mx.gluon.nn.Conv2D(32, 3, in_channels=32)
    layer.initialize(mx.init.Uniform(1.0))
    before = layer.weight.data().asnumpy()
    layer(mx.nd.ones((1, 32, 8, 8))).wait_to_read()
    assert np.allclose(hvd.allreduce(layer.weight.data()).asnumpy(), before, rtol=1e-6)
    layer(mx.nd.ones((1, 32, 8, 8))).wait_to_read()
    hvd.allreduce_(layer.weight.data(), op=hvd.Sum)
    assert np.allclose(layer.weight.data().asnumpy(), before * hvd.size(), rtol=1e-6)
