"""Wrong use of the optimizer: every mistake has a text, and what can go on does."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from models import same_everywhere, small_network
from torch import nn

import farandole.torch as hvd

pytestmark = pytest.mark.usefixtures("job")


def distributed_sgd(network: nn.Module, **options) -> torch.optim.Optimizer:
    return hvd.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters(), **options
    )


def backward(network: nn.Module) -> None:
    network(torch.randn(3, 6)).sum().backward()


def assert_still_works(network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Trains for two more steps."""
    hvd.broadcast_parameters(network.state_dict(), 0)
    for _ in range(2):
        optimizer.zero_grad()
        backward(network)
        optimizer.step()
    assert all(same_everywhere(p) for p in network.parameters())


def test_names_must_be_unique() -> None:
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    with pytest.raises(
        ValueError, match="Parameter names in named_parameters must be unique. Found duplicates: bias, weight"
    ):
        hvd.DistributedOptimizer(optimizer, itertools.chain(first.named_parameters(), second.named_parameters()))


def test_every_parameter_needs_a_name() -> None:
    network = small_network()
    with pytest.raises(ValueError, match="one or more model parameters were not named. Python object ids:"):
        hvd.DistributedOptimizer(torch.optim.SGD(network.parameters(), lr=0.1), list(network.named_parameters())[:3])


def test_named_parameters_are_pairs() -> None:
    network = small_network()
    with pytest.raises(ValueError, match="named_parameters should be a sequence of tuples"):
        hvd.DistributedOptimizer(torch.optim.SGD(network.parameters(), lr=0.1), network.parameters())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"backward_passes_per_step": 0}, "backward_passes_per_step must be > 0"),
        (
            {"gradient_predivide_factor": 2.0, "op": hvd.Sum},
            "gradient_predivide_factor not supported with op != Average",
        ),
        ({"groups": -1}, "groups should be a non-negative integer or a list of list of torch.Tensor"),
        ({"groups": "some"}, "groups should be a non-negative integer or a list of list of torch.Tensor"),
        ({"groups": [["weight"]]}, "groups must consist of torch.Tensor"),
    ],
)
def test_options_are_checked(options: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        distributed_sgd(small_network(), **options)


def test_a_parameter_is_in_one_group_only() -> None:
    network = small_network()
    parameters = list(network.parameters())
    with pytest.raises(ValueError, match="A parameter can only appear once in groups"):
        distributed_sgd(network, groups=[parameters[:2], parameters[1:3]])


def test_num_groups_is_deprecated_and_works() -> None:
    network = small_network()
    with pytest.warns(DeprecationWarning, match="`num_groups` has been replaced by `groups`"):
        optimizer = distributed_sgd(network, num_groups=2)
    assert_still_works(network, optimizer)


def test_an_optimizer_is_wrapped_once() -> None:
    optimizer = distributed_sgd(small_network())
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(optimizer)


def test_more_passes_than_announced_are_refused() -> None:
    network = small_network()
    optimizer = distributed_sgd(network)
    backward(network)
    with pytest.raises(AssertionError, match="Gradients were computed more than backward_passes_per_step times"):
        backward(network)
    with pytest.raises(AssertionError, match="was changed while it was being reduced"):
        optimizer.step()
    assert_still_works(network, optimizer)


@pytest.mark.parametrize("iterations_before", [0, 3])
def test_zero_grad_between_backward_and_step_is_refused(iterations_before: int) -> None:
    network = small_network()
    optimizer = distributed_sgd(network)
    for _ in range(iterations_before):
        optimizer.zero_grad()
        backward(network)
        optimizer.step()
    optimizer.zero_grad()
    backward(network)
    with pytest.raises(AssertionError, match="This is prohibited as it can cause a race condition"):
        optimizer.zero_grad()
    optimizer.step()
    assert_still_works(network, optimizer)


def test_zero_grad_within_a_window_begins_it_anew() -> None:
    network = small_network()
    optimizer = distributed_sgd(network, backward_passes_per_step=2)
    for _ in range(3):
        backward(network)
        optimizer.zero_grad()
        backward(network)
        backward(network)
        optimizer.step()
        optimizer.zero_grad()
    assert all(same_everywhere(p) for p in network.parameters())


def test_clipping_without_synchronize_is_found_out() -> None:
    network = small_network()
    optimizer = distributed_sgd(network)
    backward(network)
    nn.utils.clip_grad_norm_(network.parameters(), 1e-3)
    with pytest.raises(AssertionError, match="was changed while it was being reduced"):
        optimizer.step()
    assert_still_works(network, optimizer)


def test_replacing_gradients_on_their_way_is_found_out() -> None:
    network = small_network()
    optimizer = distributed_sgd(network)
    backward(network)
    network.zero_grad(set_to_none=True)
    with pytest.raises(AssertionError, match="was replaced while it was being reduced"):
        optimizer.step()
    assert_still_works(network, optimizer)


@pytest.mark.parametrize("iterations_before", [0, 3])
@pytest.mark.parametrize("options", [{}, {"groups": 2}, {"compression": hvd.Compression.fp16}])
@pytest.mark.parametrize("way", ["data", "set_", "half"])
def test_gradients_with_other_memory_are_found_out(way: str, options: dict, iterations_before: int) -> None:
    network = small_network()
    optimizer = distributed_sgd(network, **options)
    for _ in range(iterations_before):
        optimizer.zero_grad()
        backward(network)
        optimizer.step()
    optimizer.zero_grad()
    backward(network)
    if way == "data":
        network[3].weight.grad.data = torch.ones(40, 40)
    elif way == "set_":
        network[3].weight.grad.set_(torch.ones(40, 40))
    else:
        network.half()
    name = "[0-9]+.(weight|bias)" if way == "half" else "3.weight"
    with pytest.raises(AssertionError, match=rf"gradient of parameter 'allreduce.{name}' was replaced"):
        optimizer.step()
    network.float()
    assert_still_works(network, optimizer)


def test_sparse_gradients_with_other_memory_are_found_out() -> None:
    network = nn.Embedding(5, 3, sparse=True)
    optimizer = distributed_sgd(network)
    network(torch.tensor([1, 2])).sum().backward()
    network.weight.grad.data = torch.eye(5, 3).to_sparse()
    with pytest.raises(AssertionError, match="gradient of parameter 'allreduce.weight' was replaced"):
        optimizer.step()
    network.zero_grad(set_to_none=True)
    hvd.broadcast_parameters(network.state_dict(), 0)
    network(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    assert same_everywhere(network.weight)


@pytest.mark.parametrize("iterations_before", [0, 3])
def test_gradients_on_their_way_are_not_resized(iterations_before: int) -> None:
    network = small_network()
    optimizer = distributed_sgd(network)
    for _ in range(iterations_before):
        optimizer.zero_grad()
        backward(network)
        optimizer.step()
    optimizer.zero_grad()
    backward(network)
    with pytest.raises(RuntimeError, match=r"'allreduce.3.weight' is working on"):
        network[3].weight.grad.resize_(400, 400)
    optimizer.step()
    network[3].weight.grad.resize_(400, 400)
    optimizer.zero_grad(set_to_none=True)
    assert_still_works(network, optimizer)


def test_step_after_synchronize_warns_and_reduces_once() -> None:
    network = small_network()
    optimizer = distributed_sgd(network, op=hvd.Sum)
    backward(network)
    optimizer.synchronize()
    gradients = [p.grad.clone() for p in network.parameters()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    assert len(caught) == 1
    assert "optimizer.step() called without optimizer.skip_synchronize()" in str(caught[0].message)
    assert all(torch.equal(a, p.grad) for a, p in zip(gradients, network.parameters(), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_still_works(network, optimizer)


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
def test_gradients_that_are_part_of_a_graph_are_refused() -> None:
    network = small_network()
    optimizer = distributed_sgd(network)
    with pytest.raises(AssertionError, match="create_graph=True"):
        network(torch.randn(3, 6)).square().sum().backward(create_graph=True)
    optimizer.load_state_dict(optimizer.state_dict())
    network.zero_grad(set_to_none=True)
    assert_still_works(network, optimizer)


def test_ranks_with_other_shapes_are_told_so() -> None:
    network = nn.Linear(2 + hvd.rank(), 1)
    optimizer = distributed_sgd(network)
    network(torch.ones(1, 2 + hvd.rank())).sum().backward()
    with pytest.raises(hvd.HorovodInternalError, match=r"(?s)allreduce.weight.*shape"):
        optimizer.step()
    assert_still_works(healthy := small_network(), distributed_sgd(healthy))


def test_a_sparse_gradient_in_a_group_is_warned_of_once() -> None:
    network = nn.ModuleDict({"words": nn.Embedding(5, 3, sparse=True), "out": nn.Linear(3, 2)})
    optimizer = distributed_sgd(network, groups=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            optimizer.zero_grad()
            network["out"](network["words"](torch.tensor([hvd.rank(), 4]))).sum().backward()
            optimizer.step()
    said = [str(warning.message) for warning in caught if "groups" in str(warning.message)]
    assert len(said) == 1 and "'words.weight' is sparse" in said[0] and "sparse_as_dense=True" in said[0], said
    del optimizer
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dense = distributed_sgd(network, groups=1, sparse_as_dense=True)
        network["out"](network["words"](torch.tensor([1, 4]))).sum().backward()
        dense.step()


def test_groups_of_other_parameters_on_other_ranks_are_refused() -> None:
    network = small_network()
    if hvd.rank() == hvd.size() - 1:
        network[0].bias.requires_grad_(False)
    if hvd.rank() == hvd.size() - 1:
        with pytest.raises(ValueError, match="groups need the same parameters on all ranks.*0.bias"):
            distributed_sgd(network, groups=2)
    else:
        distributed_sgd(network, groups=2)
