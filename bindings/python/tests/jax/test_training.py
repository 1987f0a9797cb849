"""Training on the ranks' parts of a batch against training on the whole batch, with Optax and Flax."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import same

import farandole.jax as hvd

pytestmark = pytest.mark.usefixtures("job")

ROWS = 8
"""For each rank."""


class Network(nn.Module):
    """Two dense layers."""

    @nn.compact
    def __call__(self, features):
        return nn.Dense(3)(nn.tanh(nn.Dense(5)(features)))


def batches(steps):
    """For each step features and targets of all ranks."""
    chance = np.random.default_rng(5)
    for _ in range(steps):
        yield chance.normal(size=(ROWS * hvd.size(), 4)), chance.normal(size=(ROWS * hvd.size(), 3))


def loss_of(params, features, targets):
    return ((Network().apply(params, features) - targets) ** 2).mean()


def own(array):
    """This rank's part of a batch."""
    return array[ROWS * hvd.rank() : ROWS * (hvd.rank() + 1)]


def begin(tx):
    """Parameters in float64, so that sums in another order stay close, and the optimizer's state."""
    params = jax.tree.map(lambda leaf: leaf.astype("float64"), Network().init(jax.random.key(0), np.zeros((1, 4))))
    return params, tx.init(params)


def train(tx, value_and_grad, part, steps=6):
    """Parameters after some steps."""
    params, state = begin(tx)

    @jax.jit
    def step(params, state, features, targets):
        _, grads = value_and_grad(params, features, targets)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for features, targets in batches(steps):
        params, state = step(params, state, part(features), part(targets))
    return params


def close(found, wanted):
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-9), found, wanted)


ALONE = {"sgd": lambda: optax.sgd(0.1, momentum=0.9), "adamw": lambda: optax.adamw(0.01)}


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("kind", ALONE)
def test_an_optimizer_trains_like_one_rank_with_the_joined_batch(kind, ordered):
    alone = train(ALONE[kind](), jax.value_and_grad(loss_of), lambda array: array)
    tx = hvd.DistributedOptimizer(ALONE[kind](), name="training", ordered=ordered)
    together = train(tx, jax.value_and_grad(loss_of), own)
    close(together, alone)
    # The same on all ranks, bit by bit.
    same(together, hvd.broadcast_parameters(together))


def test_reduced_gradients_train_like_one_rank_with_the_joined_batch():
    alone = train(optax.sgd(0.1), jax.value_and_grad(loss_of), lambda array: array)
    close(train(optax.sgd(0.1), hvd.distributed_value_and_grad(loss_of), own), alone)
    params, _ = begin(optax.sgd(0.1))
    features, targets = next(batches(1))
    grads = hvd.distributed_grad(loss_of, gradient_predivide_factor=2.0)(params, own(features), own(targets))
    close(grads, jax.grad(loss_of)(params, features, targets))
    _, aux = hvd.distributed_grad(lambda w: (w.sum(), hvd.rank()), has_aux=True)(jnp.ones(3))
    assert aux == hvd.rank()


@pytest.mark.parametrize("compiled", [True, False])
def test_several_passes_make_one_step(compiled):
    tx = hvd.DistributedOptimizer(optax.sgd(0.1), backward_passes_per_step=3, average_aggregated_gradients=True)
    params, state = begin(tx)
    first = params
    update = jax.jit(tx.update) if compiled else tx.update
    grads = jax.grad(loss_of)
    total = jax.tree.map(jnp.zeros_like, params)
    for number, (features, targets) in enumerate(batches(6)):
        total = jax.tree.map(jnp.add, total, grads(params, features, targets))
        updates, state = update(grads(params, own(features), own(targets)), state, params)
        if number % 3 < 2:
            assert all(not leaf.any() for leaf in jax.tree.leaves(updates))
        params = optax.apply_updates(params, updates)
        if number == 2:
            close(params, jax.tree.map(lambda old, grad: old - 0.1 * grad / 3, first, total))


def test_extra_arguments_reach_the_optimizer():
    scale = optax.GradientTransformationExtraArgs(
        lambda params: optax.EmptyState(),
        lambda updates, state, params=None, *, factor: (jax.tree.map(lambda u: u * factor, updates), state),
    )
    tx = hvd.DistributedOptimizer(scale, op=hvd.Sum)
    updates, _ = tx.update(jnp.ones(2), tx.init(jnp.ones(2)), factor=5.0)
    assert updates.tolist() == [5.0 * hvd.size()] * 2
    with pytest.raises(ValueError, match="gradient_predivide_factor not supported"):
        hvd.DistributedOptimizer(optax.sgd(0.1), op=hvd.Sum, gradient_predivide_factor=2.0)
