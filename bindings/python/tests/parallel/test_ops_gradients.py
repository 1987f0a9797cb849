"""Gradients through every operation, against autograd on the whole computation in one process.

The reference has the inputs of all ranks in one graph and adds up the losses of all ranks. Its gradients are the true
ones. Horovod's rules differ from them by a known factor in some places, because it takes the average over the ranks
where the true gradient is the sum: each test says which.
"""

import pytest
import torch
from reference import contribution, rows_of

import farandole.torch as hvd

pytestmark = pytest.mark.usefixtures("job")

SHAPE = (4, 3)
FACTORS = dict(prescale_factor=0.5, postscale_factor=3.0)


def leaf(rank, shape=SHAPE, seed=0):
    return contribution(rank, shape, torch.float64, seed).requires_grad_()


def weights(rank, shape, seed=100):
    """What a rank's loss multiplies its result with, so that every gradient is another one."""
    return contribution(rank, tuple(shape), torch.float64, seed)


def loss_of(rank, result, seed=100):
    return (result * weights(rank, result.shape, seed)).sum()


def check(process_set, ours, whole, factor, shapes=(SHAPE,)):
    """Compares the gradients of this rank's leaves. `ours(leaves)` runs the operation on this rank; `whole(everybodys)`
    gives the results of all ranks from the leaves of all, in plain torch."""
    me, ranks = hvd.rank(), process_set.ranks
    mine = [leaf(me, shape(me) if callable(shape) else shape, seed) for seed, shape in enumerate(shapes)]
    for index, result in enumerate(ours(mine)):
        loss_of(me, result, 100 + index).backward(retain_graph=True)
    everybodys = [
        [leaf(rank, shape(rank) if callable(shape) else shape, seed) for seed, shape in enumerate(shapes)]
        for rank in ranks
    ]
    total = sum(
        loss_of(rank, result, 100 + index)
        for rank, results in zip(ranks, whole(everybodys))
        for index, result in enumerate(results)
    )
    total.backward()
    for ours_, reference in zip(mine, everybodys[ranks.index(me)]):
        torch.testing.assert_close(ours_.grad, reference.grad * factor)


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average], ids=["Sum", "Average"])
def test_allreduce(op, sets):
    """The true gradient."""
    for process_set in sets:
        divisor = process_set.size() if op == hvd.Average else 1

        def whole(everybodys, divisor=divisor):
            total = sum(leaves[0] for leaves in everybodys) * 1.5 / divisor
            return [[total] for _ in everybodys]

        how = dict(op=op, process_set=process_set, **FACTORS)
        check(process_set, lambda leaves: [hvd.allreduce(leaves[0], **how)], whole, 1)


def test_allreduce_of_extremes_reduces_gradients_alike(sets):
    """Not the true gradient: Horovod applies the operation of the forward pass to the gradients as well."""
    for process_set in sets:
        tensor = leaf(hvd.rank())
        loss_of(hvd.rank(), hvd.allreduce(tensor, op=hvd.Max, process_set=process_set)).backward()
        grads = [weights(rank, SHAPE) for rank in process_set.ranks]
        torch.testing.assert_close(tensor.grad, torch.stack(grads).amax(0))


def test_grouped_allreduce(sets):
    """The true gradient."""
    shapes = (SHAPE, (5,), ())
    for process_set in sets:

        def whole(everybodys):
            totals = [sum(leaves[index] for leaves in everybodys) * 1.5 for index in range(len(shapes))]
            return [totals for _ in everybodys]

        how = dict(op=hvd.Sum, process_set=process_set, **FACTORS)
        tensors = [leaf(hvd.rank(), shape, seed) for seed, shape in enumerate(shapes)]
        results = hvd.grouped_allreduce(tensors, **how)
        sum(loss_of(hvd.rank(), result, 100 + index) for index, result in enumerate(results)).backward()
        everybodys = [[leaf(rank, shape, seed) for seed, shape in enumerate(shapes)] for rank in process_set.ranks]
        losses = [
            loss_of(rank, result, 100 + index)
            for rank, results in zip(process_set.ranks, whole(everybodys))
            for index, result in enumerate(results)
        ]
        sum(losses).backward()
        for ours, reference in zip(tensors, everybodys[process_set.rank()]):
            torch.testing.assert_close(ours.grad, reference.grad)


def rows(rank):
    return (rank % 3 + 1, 2)


def test_allgather(sets):
    """The true gradient, divided by the number of ranks."""
    for process_set in sets:

        def whole(everybodys):
            gathered = torch.cat([leaves[0] for leaves in everybodys])
            return [[gathered] for _ in everybodys]

        ours = lambda leaves: [hvd.allgather(leaves[0], process_set=process_set)]  # noqa: E731
        check(process_set, ours, whole, 1 / process_set.size(), [rows])


def test_grouped_allgather(sets):
    """The true gradient, divided by the number of ranks."""
    for process_set in sets:
        shapes = [rows(hvd.rank()), SHAPE]
        tensors = [leaf(hvd.rank(), shape, seed) for seed, shape in enumerate(shapes)]
        results = hvd.grouped_allgather(tensors, process_set=process_set)
        sum(loss_of(hvd.rank(), result, 100 + index) for index, result in enumerate(results)).backward()
        everybodys = [[leaf(rank, rows(rank), 0), leaf(rank, SHAPE, 1)] for rank in process_set.ranks]
        gathered = [torch.cat([leaves[index] for leaves in everybodys]) for index in range(2)]
        sum(
            loss_of(rank, result, 100 + index) for rank in process_set.ranks for index, result in enumerate(gathered)
        ).backward()
        for ours, reference in zip(tensors, everybodys[process_set.rank()]):
            torch.testing.assert_close(ours.grad, reference.grad / process_set.size())


def test_broadcast(sets):
    """The true gradient, divided by the number of ranks."""
    for process_set in sets:
        for root in process_set.ranks:
            place = process_set.ranks.index(root)

            def whole(everybodys, place=place):
                # The others' leaves get a gradient of zero, which plain torch would leave out.
                return [[everybodys[place][0] + 0 * leaves[0]] for leaves in everybodys]

            ours = lambda leaves, root=root: [hvd.broadcast(leaves[0], root, process_set=process_set)]  # noqa: E731
            check(process_set, ours, whole, 1 / process_set.size())


def test_alltoall(sets):
    """The true gradient."""
    for process_set in sets:
        size = process_set.size()
        splits = {rank: [(rank + other) % 3 + 1 for other in process_set.ranks] for rank in process_set.ranks}

        def whole(everybodys, splits=splits, size=size):
            parts = [leaves[0].split(splits[rank]) for rank, leaves in zip(process_set.ranks, everybodys)]
            return [[torch.cat([theirs[place] for theirs in parts])] for place in range(size)]

        ours = lambda leaves: [hvd.alltoall(leaves[0], splits[hvd.rank()], process_set=process_set)[0]]  # noqa: E731
        check(process_set, ours, whole, 1, [lambda rank, splits=splits: (sum(splits[rank]), 2)])

        def equally(everybodys, size=size):
            parts = [leaves[0].chunk(size) for leaves in everybodys]
            return [[torch.cat([theirs[place] for theirs in parts])] for place in range(size)]

        check(
            process_set, lambda leaves: [hvd.alltoall(leaves[0], process_set=process_set)], equally, 1, [(2 * size, 3)]
        )


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average], ids=["Sum", "Average"])
def test_reducescatter(op, sets):
    """The true gradient, times the number of ranks."""
    for process_set in sets:
        divisor = process_set.size() if op == hvd.Average else 1

        def whole(everybodys, divisor=divisor):
            total = sum(leaves[0] for leaves in everybodys) * 1.5 / divisor
            return [[rows_of(process_set, total, place)] for place in range(len(everybodys))]

        how = dict(op=op, process_set=process_set, **FACTORS)
        check(process_set, lambda leaves: [hvd.reducescatter(leaves[0], **how)], whole, process_set.size(), [(7, 2)])


def test_grouped_reducescatter(sets):
    """The true gradient, times the number of ranks."""
    for process_set in sets:
        shapes = [(7, 2), (3,)]
        tensors = [leaf(hvd.rank(), shape, seed) for seed, shape in enumerate(shapes)]
        results = hvd.grouped_reducescatter(tensors, op=hvd.Sum, process_set=process_set)
        sum(loss_of(hvd.rank(), result, 100 + index) for index, result in enumerate(results)).backward()
        everybodys = [[leaf(rank, shape, seed) for seed, shape in enumerate(shapes)] for rank in process_set.ranks]
        total = 0
        for index in range(len(shapes)):
            summed = sum(leaves[index] for leaves in everybodys)
            for place, rank in enumerate(process_set.ranks):
                total = total + loss_of(rank, rows_of(process_set, summed, place), 100 + index)
        total.backward()
        for ours, reference in zip(tensors, everybodys[process_set.rank()]):
            torch.testing.assert_close(ours.grad, reference.grad * process_set.size())


def test_second_derivatives():
    tensor = leaf(hvd.rank())
    result = hvd.allreduce(tensor**3, op=hvd.Sum)
    [first] = torch.autograd.grad(result.sum(), tensor, create_graph=True)
    [second] = torch.autograd.grad(first.sum(), tensor)
    size = hvd.size()
    torch.testing.assert_close(first, 3 * tensor**2 * size)
    torch.testing.assert_close(second, 6 * tensor.detach() * size)


def test_gradients_reach_a_model_behind_an_allgather():
    torch.manual_seed(3)
    layer = torch.nn.Linear(3, 2, dtype=torch.float64)
    features = layer(contribution(hvd.rank(), (2, 3), torch.float64))
    hvd.allgather(features).square().mean().backward()
    assert layer.weight.grad is not None and torch.isfinite(layer.weight.grad).all()


def test_in_place_and_async_forms_are_invisible_to_autograd():
    tensor = leaf(hvd.rank())
    result = hvd.synchronize(hvd.allreduce_async(tensor, op=hvd.Sum))
    assert not result.requires_grad
    product = tensor * 2
    hvd.allreduce_(product.detach(), op=hvd.Sum)
    product.sum().backward()
    torch.testing.assert_close(tensor.grad, torch.full(SHAPE, 2.0, dtype=torch.float64))
    with torch.no_grad():
        assert not hvd.allreduce(tensor).requires_grad
