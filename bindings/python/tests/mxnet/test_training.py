"""Training on many ranks gives what one rank gives with all their batches."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.base import MXNetError

import farandole.mxnet as hvd

pytestmark = [pytest.mark.timeout(90), pytest.mark.usefixtures("job")]

BATCH = 6
STEPS = 5


def make_net(seed: int) -> gluon.nn.HybridSequential:
    mx.random.seed(seed)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(4, 3, in_channels=1), gluon.nn.Dense(8, activation="relu", in_units=144))
    net.add(gluon.nn.Dense(3, in_units=8))
    net.initialize(mx.init.Uniform(0.1))
    return net


def batch_of(rank: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.RandomState(100 * step + rank)
    return chance.rand(BATCH, 1, 8, 8).astype("float32"), chance.randint(3, size=BATCH)


def train(net: gluon.Block, trainer: gluon.Trainer, ranks: list[int]) -> None:
    """Trains with the batches of these ranks, joined."""
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    for step in range(STEPS):
        images, labels = zip(*(batch_of(rank, step) for rank in ranks))
        with autograd.record():
            loss = loss_of(net(mx.nd.array(np.concatenate(images))), mx.nd.array(np.concatenate(labels)))
        loss.backward()
        trainer.step(BATCH * len(ranks))


def weights(net: gluon.Block) -> list[np.ndarray]:
    return [param.data().asnumpy() for param in net.collect_params().values()]


@pytest.mark.parametrize(
    "options",
    [{}, {"num_groups": 2}, {"num_groups": 100}, {"gradient_predivide_factor": 2.0}],
    ids=["plain", "groups", "more groups than gradients", "predivided"],
)
@pytest.mark.parametrize("hybrid", [False, True], ids=["imperative", "hybrid"])
def test_many_ranks_are_one_rank_with_the_joined_batch(options, hybrid: bool) -> None:
    alone, together = make_net(1), make_net(1 if hvd.rank() == 0 else 2)
    if hybrid:
        together.hybridize()
    arguments = ("sgd", {"learning_rate": 0.5, "momentum": 0.9})
    train(alone, gluon.Trainer(alone.collect_params(), *arguments), list(range(hvd.size())))
    hvd.broadcast_parameters(together.collect_params(), root_rank=0)
    train(together, hvd.DistributedTrainer(together.collect_params(), *arguments, **options), [hvd.rank()])
    for ours, theirs in zip(weights(together), weights(alone)):
        assert np.allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_half_precision_on_the_wire_is_close() -> None:
    alone, together = make_net(1), make_net(1)
    train(alone, gluon.Trainer(alone.collect_params(), "sgd", {"learning_rate": 0.5}), list(range(hvd.size())))
    for groups in (0, 2):
        together = make_net(1)
        trainer = hvd.DistributedTrainer(
            together.collect_params(),
            "sgd",
            {"learning_rate": 0.5},
            compression=hvd.Compression.fp16,
            num_groups=groups,
        )
        train(together, trainer, [hvd.rank()])
        assert all(param.data().dtype == np.float32 for param in together.collect_params().values())
        for ours, theirs in zip(weights(together), weights(alone)):
            assert np.allclose(ours, theirs, atol=2e-3) and not np.array_equal(ours, theirs)


def test_two_trainers_with_prefixes_keep_apart() -> None:
    nets = [make_net(1), make_net(2)]
    trainers = [
        hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, prefix=f"net{number}.")
        for number, net in enumerate(nets)
    ]
    for net, trainer in zip(nets, trainers):
        train(net, trainer, [hvd.rank()])
    for net in nets:
        for array in weights(net):
            assert all(np.array_equal(array, other) for other in hvd.allgather_object(array))


def test_ranks_outside_of_the_set_train_alone(sets) -> None:
    first = hvd.add_process_set([0, 1]) if hvd.size() > 2 else hvd.global_process_set
    net = make_net(1)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.5}, process_set=first)
    train(net, trainer, [hvd.rank()])
    alone = make_net(1)
    ranks = [0, 1] if first.included() else [hvd.rank()]
    train(alone, gluon.Trainer(alone.collect_params(), "sgd", {"learning_rate": 0.5}), ranks)
    for ours, theirs in zip(weights(net), weights(alone)):
        assert np.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    if hvd.size() > 2:
        hvd.remove_process_set(first)


@pytest.mark.parametrize("groups", [0, 2])
def test_the_optimizer_reduces_what_it_is_given(groups: int) -> None:
    size = hvd.size()
    optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0), num_groups=groups)
    average = sum(range(1, size + 1)) / size
    one, state = mx.nd.zeros((4,)), optimizer.create_state(0, mx.nd.zeros((4,)))
    optimizer.update(0, one, mx.nd.full((4,), hvd.rank() + 1), state)
    assert np.allclose(one.asnumpy(), -average)
    several = [mx.nd.zeros((number + 1,)) for number in range(5)]
    gradients = [mx.nd.full(weight.shape, hvd.rank() + 1) for weight in several]
    optimizer.update_multi_precision(list(range(5)), several, gradients, [None] * 5)
    for weight in several:
        assert np.allclose(weight.asnumpy(), -average)
    optimizer.set_learning_rate(0.25)
    assert optimizer.learning_rate == 0.25, "what is asked of it, the optimizer inside answers"


def test_a_module_trains_with_the_optimizer() -> None:
    features, labels = np.random.RandomState(hvd.rank()).rand(32, 4).astype("float32"), np.zeros(32)
    data = mx.io.NDArrayIter(features, labels, batch_size=8, label_name="softmax_label")
    layer = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
    symbol = mx.sym.SoftmaxOutput(layer, name="softmax")
    module = mx.mod.Module(symbol)
    module.bind(data_shapes=data.provide_data, label_shapes=data.provide_label)
    module.init_params(mx.init.Uniform(1.0))
    arguments, auxiliary = module.get_params()
    hvd.broadcast_parameters(arguments)
    hvd.broadcast_parameters(auxiliary)
    module.set_params(arguments, auxiliary)
    optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=0.1, rescale_grad=1 / 8))
    with pytest.warns(UserWarning, match="already initialized"):
        module.fit(data, optimizer=optimizer, kvstore=None, num_epoch=2)
    for name, array in sorted(module.get_params()[0].items()):
        assert all(np.array_equal(array.asnumpy(), other) for other in hvd.allgather_object(array.asnumpy())), name


def test_parameters_whose_shapes_are_not_known_are_broadcast_when_they_are() -> None:
    mx.random.seed(hvd.rank())
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(4, 3), gluon.nn.BatchNorm(), gluon.nn.Dense(3))
    net.initialize(mx.init.Uniform(1.0))
    hvd.broadcast_parameters(net.collect_params(), root_rank=hvd.size() - 1, prefix="deferred.")
    with autograd.record():
        net(mx.nd.ones((2, 1, 8, 8)))
    for array in weights(net):
        assert all(np.array_equal(array, other) for other in hvd.allgather_object(array))


def test_a_dict_of_arrays_is_broadcast_and_nothing_else_is_taken() -> None:
    arrays = {name: mx.nd.full((3,), hvd.rank()) for name in ("b", "a")}
    hvd.broadcast_parameters(arrays, root_rank=1)
    assert all(array.asnumpy().tolist() == [1.0] * 3 for array in arrays.values())
    with pytest.raises(ValueError, match="invalid params of type"):
        hvd.broadcast_parameters([mx.nd.ones((2,))])
    with pytest.raises(ValueError, match="prefix"):
        hvd.broadcast_parameters(arrays, prefix=3)


def test_gradients_that_do_not_fit_fail_the_step_of_every_rank() -> None:
    net = gluon.nn.Dense(2 + hvd.rank(), in_units=3)
    net.initialize()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, prefix="misfit.")
    with autograd.record():
        loss = net(mx.nd.ones((2, 3))).sum()
    loss.backward()
    with pytest.raises(MXNetError, match="Mismatched ALLREDUCE tensor shapes"):
        trainer.step(2)
        mx.nd.waitall()


def test_trainers_refuse_what_they_cannot_do() -> None:
    net = make_net(1)
    params = net.collect_params()
    inside = mx.optimizer.SGD()
    with pytest.warns(UserWarning, match="unwrapped"):
        trainer = hvd.DistributedTrainer(params, hvd.DistributedOptimizer(inside))
    assert trainer._optimizer is inside
    with pytest.raises(ValueError, match="num_groups"):
        hvd.DistributedTrainer(params, "sgd", num_groups=-1)
    with pytest.raises(ValueError, match="not 0"):
        hvd.DistributedTrainer(params, "sgd", gradient_predivide_factor=0)
    wide = gluon.nn.Dense(2, in_units=2)
    wide.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    with pytest.raises(ValueError, match="a rank for each device"):
        hvd.DistributedTrainer(wide.collect_params(), "sgd")
