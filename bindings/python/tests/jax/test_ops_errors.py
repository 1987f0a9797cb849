"""Calls that do not match, sets that a rank is not in, and jobs that are over."""

import jax
import jax.numpy as jnp
import pytest

import farandole.jax as hvd
from farandole.exceptions import MismatchError

pytestmark = pytest.mark.usefixtures("job")

MISMATCHES = {
    "shapes": lambda rank: hvd.psum(jnp.ones(3 + rank)),
    "element types": lambda rank: hvd.psum(jnp.ones(3, jnp.float32 if rank else jnp.int32)),
    "operations": lambda rank: hvd.psum(jnp.ones(3)) if rank else hvd.pmax(jnp.ones(3)),
    "collectives": lambda rank: hvd.psum(jnp.ones(3)) if rank else hvd.broadcast(jnp.ones(3), 0),
    "roots": lambda rank: hvd.broadcast(jnp.ones(3), min(rank, 1)),
    "counts": lambda rank: hvd.psum([jnp.ones(3)] * (2 + min(rank, 1))),
}


@pytest.mark.parametrize("kind", MISMATCHES)
def test_what_does_not_match_is_refused_by_name(kind):
    ask = MISMATCHES[kind]
    with pytest.raises(MismatchError, match="jax.call.0"):
        ask(hvd.rank())
    with pytest.raises(jax.errors.JaxRuntimeError, match="jax.call.0"):
        jax.block_until_ready(jax.jit(lambda: ask(hvd.rank()))())
    # The job goes on.
    assert hvd.psum(1) == hvd.size()


def test_a_rank_outside_of_a_set_is_told():
    ranks = hvd.add_process_set([0])
    if hvd.rank() == 0:
        assert hvd.psum(5, process_set=ranks) == 5
    else:
        with pytest.raises(ValueError, match="is not a member of the provided process set"):
            jax.jit(lambda array: hvd.psum(array, process_set=ranks))(jnp.ones(2))
    hvd.remove_process_set(ranks)
    with pytest.raises(ValueError, match="is not registered"):
        hvd.psum(5, process_set=ranks)


def test_a_compiled_program_says_that_the_job_is_over_and_works_in_the_next_one():
    program = jax.jit(hvd.psum)
    assert program(jnp.ones(2)).tolist() == [hvd.size()] * 2
    size = hvd.size()
    hvd.shutdown()
    with pytest.raises(ValueError, match="Farandole has not been initialized"):
        hvd.psum(1)
    with pytest.raises(Exception, match="Farandole has not been initialized"):
        jax.block_until_ready(program(jnp.ones(2)))
    hvd.init(process_sets="dynamic")
    assert program(jnp.ones(2)).tolist() == [size] * 2
