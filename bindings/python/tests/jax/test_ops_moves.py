"""Broadcast, allgather, alltoall, barrier, join, parameters and objects."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DTYPES, WAYS, contribution, contributions, mine, same

import farandole.jax as hvd

pytestmark = pytest.mark.usefixtures("job")


@pytest.mark.parametrize("way", WAYS)
def test_broadcast_of_every_element_type_from_every_root(way):
    tree = {dtype: mine((4, 2), dtype) for dtype in DTYPES}
    for root in range(hvd.size()):
        found = WAYS[way](lambda tree: hvd.broadcast(tree, root))(tree)
        same(found, {dtype: contribution(root, (4, 2), dtype) for dtype in DTYPES})
    with pytest.raises(ValueError, match="invalid root rank 99"):
        hvd.broadcast(tree, 99)


@pytest.mark.parametrize("way", WAYS)
def test_allgather_of_every_element_type(way, sets):
    for process_set in sets:
        tree = [mine((3, 2), dtype) for dtype in DTYPES]
        found = WAYS[way](lambda tree: hvd.grouped_allgather(tree, process_set=process_set))(tree)
        same(found, [jnp.concatenate(contributions(process_set, (3, 2), dtype)) for dtype in DTYPES])


def test_outside_of_jit_ranks_bring_different_numbers_of_rows():
    rows = [jnp.full((rank, 2), rank, jnp.float32) for rank in range(hvd.size())]
    same(hvd.allgather(rows[hvd.rank()]), jnp.concatenate(rows))
    same(hvd.allgather(jnp.float32(hvd.rank())), np.arange(hvd.size(), dtype=np.float32))


def test_inside_of_jit_that_is_an_error_that_says_so():
    rows = jnp.ones((hvd.rank() + 1, 2))
    with pytest.raises(Exception, match="every rank must bring as many rows as this one"):
        jax.block_until_ready(jax.jit(hvd.allgather)(rows))


@pytest.mark.parametrize("way", WAYS)
def test_alltoall_sends_equal_parts(way):
    size = hvd.size()
    wanted = jnp.concatenate(
        [array[2 * hvd.rank() : 2 * hvd.rank() + 2] for array in contributions(hvd.global_process_set, (2 * size, 3))]
    )
    same(WAYS[way](hvd.alltoall)(mine((2 * size, 3))), wanted)
    with pytest.raises(ValueError, match="cannot be shared evenly|splits"):
        WAYS["jit"](hvd.alltoall)(jnp.ones(size + 1))


def test_alltoall_with_splits_outside_of_jit():
    rank, size = hvd.rank(), hvd.size()
    splits = [to + 1 for to in range(size)]
    sent = jnp.concatenate([jnp.full((to + 1,), 10 * rank + to, jnp.int32) for to in range(size)])
    received, counts = hvd.alltoall(sent, splits)
    same(received, jnp.concatenate([jnp.full((rank + 1,), 10 * source + rank, jnp.int32) for source in range(size)]))
    assert counts.tolist() == [rank + 1] * size
    with pytest.raises(ValueError, match="cannot be compiled"):
        jax.jit(lambda array: hvd.alltoall(array, splits))(sent)


@pytest.mark.parametrize("way", WAYS)
def test_gathering_and_exchanging_with_jax_names(way):
    size, rank = hvd.size(), hvd.rank()
    arrays = [np.asarray(array) for array in contributions(hvd.global_process_set, (2, size, 3))]
    array = mine((2, size, 3))
    for axis in (0, 1, 3):
        same(WAYS[way](lambda array: hvd.all_gather(array, axis=axis))(array), np.stack(arrays, axis))
    same(WAYS[way](lambda array: hvd.all_gather(array, axis=2, tiled=True))(array), np.concatenate(arrays, 2))
    exchanged = WAYS[way](lambda array: hvd.all_to_all(array, 1, 0))(array)
    same(exchanged, np.stack([other[:, rank] for other in arrays]))
    tiled = WAYS[way](lambda array: hvd.all_to_all(array, 1, 2, tiled=True))(array)
    same(tiled, np.concatenate([other[:, rank : rank + 1] for other in arrays], 2))


def test_barrier_and_join():
    hvd.barrier()
    jax.jit(lambda: hvd.barrier())()
    for _ in range(hvd.rank()):
        hvd.allreduce(jnp.ones(2), name="before joining", op=hvd.Sum)
    # The others' allreduces go on without the ranks that have joined.
    assert hvd.join() == hvd.size() - 1


def test_parameters_come_from_the_root():
    tree = {"w": mine((3,)), "n": hvd.rank(), "key": jax.random.key(hvd.rank()), "none": None}
    found = hvd.broadcast_parameters(tree, root_rank=1)
    same(found["w"], contribution(1, (3,)))
    assert found["n"] == 1 and found["none"] is None
    same(jax.random.key_data(found["key"]), jax.random.key_data(jax.random.key(1)))
    with pytest.raises(TypeError, match=r"\['a'\] is a str and not an array"):
        hvd.broadcast_parameters({"a": "text"})


def test_objects():
    assert hvd.broadcast_object({"rank": hvd.rank()}, root_rank=1) == {"rank": 1}
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
