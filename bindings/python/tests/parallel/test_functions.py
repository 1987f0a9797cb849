"""Parameters, optimizer states and objects, from one rank to all and from all to all."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from models import same_everywhere, small_network
from torch import nn

import farandole.torch as hvd

pytestmark = pytest.mark.usefixtures("job")


@pytest.mark.parametrize("root", [0, -1])
@pytest.mark.parametrize("form", ["state_dict", "named", "named list", "plain", "tensors"])
def test_parameters_become_the_roots(form: str, root: int) -> None:
    root %= hvd.size()
    network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).to(memory_format=torch.channels_last)
    with torch.no_grad():
        for tensor in network.state_dict().values():
            tensor.fill_(hvd.rank() + 1)
    params = {
        "state_dict": network.state_dict(),
        "named": network.named_parameters(),
        "named list": list(network.named_parameters()),
        "plain": network.parameters(),
        "tensors": list(network.state_dict().values()),
    }[form]
    hvd.broadcast_parameters(params, root_rank=root)
    reached = network.state_dict().values() if form in ("state_dict", "tensors") else network.parameters()
    assert all(bool((tensor == root + 1).all()) for tensor in reached)
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_parameters_within_a_process_set() -> None:
    odds = hvd.add_process_set(list(range(1, hvd.size(), 2)))
    try:
        tensor = torch.full((3,), float(hvd.rank()))
        if odds.included():
            hvd.broadcast_parameters({"t": tensor}, root_rank=1, process_set=odds)
        assert bool((tensor == hvd.rank() % 2).all()) or not odds.included()
    finally:
        hvd.remove_process_set(odds)


@pytest.mark.parametrize("params", [torch.ones(2), "parameters", None, 3])
def test_what_is_no_collection_of_parameters_is_refused(params: object) -> None:
    with pytest.raises(ValueError, match="invalid params of type"):
        hvd.broadcast_parameters(params, root_rank=0)


def test_an_entry_that_is_no_tensor_is_named() -> None:
    with pytest.raises(ValueError, match="'extra' is a str"):
        hvd.broadcast_parameters({"weight": torch.ones(1), "extra": "state"}, root_rank=0)


def all_optimizers() -> list[type[torch.optim.Optimizer]]:
    """Every optimizer of torch whose state can be broadcast and whose gradients are dense, for matrices."""
    kinds = [
        kind
        for kind in vars(torch.optim).values()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    ]
    return sorted(set(kinds) - {torch.optim.LBFGS, torch.optim.SparseAdam}, key=lambda kind: kind.__name__)


def matrices(seed: int) -> nn.Sequential:
    """A network of matrices alone, which all optimizers take."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 4, bias=False), nn.Linear(4, 3, bias=False))


def values_of(optimizer: torch.optim.Optimizer) -> list:
    """All of a state: options, and values in the order of parameters."""
    state = optimizer.state_dict()
    options = [{k: v for k, v in group.items() if k != "params"} for group in state["param_groups"]]
    return [options, {number: dict(sorted(values.items())) for number, values in state["state"].items()}]


def same(a: object, b: object) -> bool:
    """Equality through lists, dicts and tensors, of types, too."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool(torch.equal(a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("kind", all_optimizers(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_state_that_only_the_root_has_reaches_everybody(kind: type, wrapped: bool) -> None:
    network = matrices(seed=1)
    optimizer = kind(network.parameters(), lr=0.1 if hvd.rank() == 0 else 0.7)
    if hvd.rank() == 0:
        for _ in range(2):
            network(torch.ones(2, 6)).sum().backward()
            optimizer.step()
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, network.named_parameters())
    hvd.broadcast_parameters(network.state_dict(), root_rank=0)
    before = [p.detach().clone() for p in network.parameters()]
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert all(torch.equal(p, old) for p, old in zip(network.parameters(), before, strict=True))
    everybody = hvd.allgather_object(values_of(optimizer))
    assert all(same(each, everybody[0]) for each in everybody)
    assert optimizer.param_groups[0]["lr"] == 0.1
    # It can go on with it.
    network.zero_grad()
    network(torch.full((2, 6), float(hvd.rank() if wrapped else 1))).sum().backward()
    optimizer.step()
    assert all(same_everywhere(p) for p in network.parameters())


def test_a_state_that_the_root_does_not_have_is_lost() -> None:
    network = matrices(seed=1)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    last = hvd.size() - 1
    if hvd.rank() != last:
        network(torch.ones(2, 6)).sum().backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=last)
    assert not optimizer.state_dict()["state"]


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.1, "betas": (0.9, 0.99), "foreach": None, "amsgrad": True},
        {"lr": torch.tensor(0.25), "betas": (0.9, 0.99), "foreach": False, "capturable": False},
    ],
)
def test_options_keep_their_types(options: dict) -> None:
    network = matrices(seed=1)
    own = options if hvd.rank() == 0 else {"lr": 0.9 if isinstance(options["lr"], float) else torch.tensor(0.9)}
    optimizer = torch.optim.Adam(
        [{"params": network[0].parameters()}, {"params": network[1].parameters(), "weight_decay": 0.5}], **own
    )
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for group in optimizer.param_groups:
        for key, value in options.items():
            assert same(group[key], value), key
    assert optimizer.param_groups[1]["weight_decay"] == 0.5


def test_lbfgs_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot broadcast torch.optim.LBFGS state"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(small_network().parameters()), root_rank=0)


def test_other_groups_than_the_roots_are_refused() -> None:
    network = matrices(seed=1)
    parameters = list(network.parameters())[: 2 if hvd.rank() == 0 else 1]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    if hvd.rank() == 0:
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    else:
        with pytest.raises(ValueError, match=r"parameter groups of \[1\] parameters, that of rank 0 has \[2\]"):
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)


def test_parameters_without_gradients_get_none_and_others_zeros() -> None:
    frozen, free = nn.Parameter(torch.tensor([1, 3]), requires_grad=False), nn.Parameter(torch.rand(4))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([frozen, free], lr=0.1, momentum=0.9))
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert frozen.grad is None
    assert torch.equal(hvd.broadcast(free.grad, root_rank=0), torch.zeros(4))


class Thing:
    """Something of the script's own."""

    def __init__(self, value: int) -> None:
        self.value = value


@pytest.mark.parametrize("root", [0, -1])
def test_objects_reach_everybody_whatever_they_handed_in(root: int) -> None:
    root %= hvd.size()
    sent = [{"hello": 123, 0: [1, 2]}, None, "", b"x" * 100_001, Thing(7), torch.arange(5), lambda n: n + 1]
    received = [hvd.broadcast_object(each if hvd.rank() == root else object(), root_rank=root) for each in sent]
    assert received[:4] == sent[:4]
    assert received[4].value == 7
    assert torch.equal(received[5], torch.arange(5))
    assert received[6](41) == 42


def test_everybodys_objects_in_the_order_of_ranks() -> None:
    own = {"rank": hvd.rank(), "padding": "x" * (1000 * hvd.rank())}
    gathered = hvd.allgather_object(own, name="metrics")
    assert [each["rank"] for each in gathered] == list(range(hvd.size()))
    assert [len(each["padding"]) for each in gathered] == [1000 * rank for rank in range(hvd.size())]


def test_objects_within_process_sets() -> None:
    evens, odds = (list(range(first, hvd.size(), 2)) for first in (0, 1))
    sets = [hvd.add_process_set(ranks) for ranks in (evens, odds)]
    try:
        own_ranks, own_set = (evens, sets[0]) if hvd.rank() in evens else (odds, sets[1])
        assert hvd.broadcast_object(hvd.rank(), root_rank=own_ranks[-1], process_set=own_set) == own_ranks[-1]
        assert hvd.allgather_object(hvd.rank(), process_set=own_set) == own_ranks
    finally:
        for each in sets:
            hvd.remove_process_set(each)


@pytest.mark.parametrize(
    ("compressor", "wide", "narrow"),
    [
        (hvd.Compression.none, dtype, dtype)
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool)
    ]
    + list(itertools.product([hvd.Compression.fp16], [torch.float64, torch.float32], [torch.float16]))
    + list(itertools.product([hvd.Compression.bf16], [torch.float64, torch.float32], [torch.bfloat16]))
    + [(hvd.Compression.fp16, torch.int32, torch.int32), (hvd.Compression.bf16, torch.float16, torch.float16)],
)
def test_compression_and_back(compressor: type, wide: torch.dtype, narrow: torch.dtype) -> None:
    tensor = torch.tensor([0, 1, 0, 3]).to(wide)
    compressed, context = compressor.compress(tensor)
    assert compressed.dtype == narrow
    restored = compressor.decompress(compressed, context)
    assert restored.dtype == wide
    assert torch.equal(restored, tensor)
    if wide in (torch.float64, torch.float32):
        reduced = hvd.allreduce(tensor * math.pi, compression=compressor)
        assert reduced.dtype == wide
        torch.testing.assert_close(reduced, tensor * math.pi, rtol=1e-2, atol=1e-2)
