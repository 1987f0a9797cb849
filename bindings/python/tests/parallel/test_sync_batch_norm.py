"""Normalising over all ranks is normalising the concatenated batch."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from models import same_everywhere
from torch import nn

import farandole.torch as hvd
from farandole.torch import sync_batch_norm

pytestmark = pytest.mark.usefixtures("job")


def joined_batch(shape_of, dtype: torch.dtype = torch.float64, seed: int = 3) -> list[torch.Tensor]:
    """Every rank's batch, on every rank; `shape_of(rank)` says how large each is."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(shape_of(rank), generator=generator, dtype=torch.float64) * (1 + rank) + 5 * rank).to(dtype)
        for rank in range(hvd.size())
    ]


def plain_of(layer: hvd.SyncBatchNorm) -> nn.Module:
    """`BatchNorm` with the same settings and parameters, for inputs of any number of dimensions."""

    class BatchNorm(nn.BatchNorm1d):
        def _check_input_dim(self, input: torch.Tensor) -> None:
            pass

    plain = BatchNorm(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
    plain.to(next(iter(layer.state_dict().values()), torch.zeros(1, dtype=torch.float64)).dtype)
    plain.load_state_dict(layer.state_dict())
    return plain


def randomise(layer: nn.Module) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter))


def check(layer: hvd.SyncBatchNorm, parts: list[torch.Tensor], tolerance: float) -> None:
    """Compares outputs, statistics and gradients with those of the concatenated batch, twice in a row."""
    randomise(layer)
    plain = plain_of(layer)
    rank = hvd.rank()
    rows = [part.size(0) for part in parts]
    weights = [
        torch.cos(torch.arange(part.numel(), dtype=torch.float64)).view_as(part).to(part.dtype) for part in parts
    ]
    for _ in range(2):
        own = parts[rank].clone().requires_grad_()
        everybodys = torch.cat(parts).requires_grad_()
        output, expected = layer(own), plain(everybodys)
        layer.zero_grad()
        plain.zero_grad()
        (output * weights[rank]).sum().backward()
        (expected * torch.cat(weights)).sum().backward()
        torch.testing.assert_close(output, expected.split(rows)[rank], rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(own.grad, everybodys.grad.split(rows)[rank], rtol=tolerance, atol=tolerance)
        for own_parameter, other in zip(layer.parameters(), plain.parameters(), strict=True):
            total = hvd.allreduce(own_parameter.grad, op=hvd.Sum)
            torch.testing.assert_close(total, other.grad, rtol=tolerance, atol=20 * tolerance)
        for name, buffer in layer.named_buffers():
            torch.testing.assert_close(buffer, dict(plain.named_buffers())[name], rtol=tolerance, atol=tolerance)
            assert same_everywhere(buffer)


SHAPES = {
    "2D": lambda rank: (4, 3),
    "3D": lambda rank: (2, 3, 5),
    "4D": lambda rank: (2, 3, 4, 5),
    "5D": lambda rank: (2, 3, 2, 2, 2),
    "uneven": lambda rank: (1 + 2 * rank, 3, 4),
    "empty on rank 0": lambda rank: (0 if rank == 0 else 3, 3, 4),
    "one row": lambda rank: (1, 3),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("affine", [True, False])
def test_it_is_batch_norm_of_the_concatenated_batch(shape: str, affine: bool) -> None:
    check(hvd.SyncBatchNorm(3, affine=affine).double(), joined_batch(SHAPES[shape]), 1e-9)


@pytest.mark.parametrize("momentum", [None, 0.0, 0.3, 1.0])
def test_running_statistics_with_any_momentum(momentum: float | None) -> None:
    check(hvd.SyncBatchNorm(3, momentum=momentum).double(), joined_batch(SHAPES["uneven"]), 1e-9)


def test_without_running_statistics() -> None:
    layer = hvd.SyncBatchNorm(3, track_running_stats=False).double()
    check(layer, joined_batch(SHAPES["uneven"]), 1e-9)
    layer.eval()
    check(layer, joined_batch(SHAPES["uneven"]), 1e-9)


def test_single_precision_keeps_its_digits_far_from_zero() -> None:
    parts = [part + 1000 for part in joined_batch(SHAPES["4D"], torch.float64)]
    layer = hvd.SyncBatchNorm(3, affine=False, track_running_stats=False)
    output = layer(parts[hvd.rank()].float())
    exact = plain_of(hvd.SyncBatchNorm(3, affine=False, track_running_stats=False).double())(torch.cat(parts))
    torch.testing.assert_close(output.double(), exact.split(2)[hvd.rank()], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_types(dtype: torch.dtype) -> None:
    layer = hvd.SyncBatchNorm(3)
    own = joined_batch(SHAPES["uneven"], dtype)[hvd.rank()].requires_grad_()
    output = layer(own)
    output.float().square().sum().backward()
    assert output.dtype == dtype and own.grad.dtype == dtype and layer.weight.grad.dtype == torch.float32
    exact = nn.BatchNorm1d(3)(torch.cat(joined_batch(SHAPES["uneven"], dtype)).float())
    rows = [part.size(0) for part in joined_batch(SHAPES["uneven"])]
    torch.testing.assert_close(output.float(), exact.split(rows)[hvd.rank()], rtol=2e-2, atol=2e-2)


def test_evaluation_exchanges_nothing_and_uses_the_running_statistics() -> None:
    layer = hvd.SyncBatchNorm(3).double()
    layer(joined_batch(SHAPES["4D"])[hvd.rank()])
    layer.eval()
    plain = plain_of(layer).eval()
    if hvd.rank() == 0:  # Alone: with an exchange this would never end.
        x = torch.randn(2, 3, 4, 5, dtype=torch.float64)
        torch.testing.assert_close(layer(x), plain(x))


def test_gradients_agree_with_finite_differences() -> None:
    layer = hvd.SyncBatchNorm(2).double()
    randomise(layer)
    own = joined_batch(lambda rank: (2 + rank, 2))[hvd.rank()].requires_grad_()

    def loss() -> torch.Tensor:
        output = layer(own)
        return (output * torch.arange(output.numel(), dtype=torch.float64).view_as(output)).square().sum()

    loss().backward()
    # Rank 0's inputs move; the sum of everybody's losses must move as its gradient says.
    for position in range(4):
        shifted = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                if hvd.rank() == 0:
                    own.view(-1)[position] += step
                shifted.append(hvd.allreduce(loss().detach(), op=hvd.Sum))
                if hvd.rank() == 0:
                    own.view(-1)[position] -= step
        if hvd.rank() == 0:
            difference = (shifted[0] - shifted[1]) / 2e-5
            torch.testing.assert_close(own.grad.view(-1)[position], difference, rtol=1e-5, atol=1e-5)


def test_only_the_ranks_of_a_process_set_are_normalised_together() -> None:
    some = hvd.add_process_set(list(range(hvd.size() - 1)))
    try:
        layer = hvd.SyncBatchNorm(3, process_set=some).double()
        parts = joined_batch(SHAPES["uneven"])
        output = layer(parts[hvd.rank()])
        together = parts[:-1] if some.included() else parts[-1:]
        expected = nn.BatchNorm1d(3).double()(torch.cat(together)).split([part.size(0) for part in together])
        torch.testing.assert_close(output, expected[hvd.rank() if some.included() else 0])
    finally:
        hvd.remove_process_set(some)


def test_a_network_trains_with_it_as_with_the_joined_batch() -> None:
    def build() -> nn.Sequential:
        torch.manual_seed(9)
        return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)).double()

    network, reference = hvd.SyncBatchNorm.convert_sync_batchnorm(build()), build()
    assert isinstance(network[1], hvd.SyncBatchNorm)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters())
    alone = torch.optim.SGD(reference.parameters(), lr=0.1)
    for seed in range(4):
        parts = joined_batch(lambda rank: (3, 2, 6, 6), seed=seed)
        optimizer.zero_grad()
        network(parts[hvd.rank()]).square().mean().backward()
        optimizer.step()
        alone.zero_grad()
        reference(torch.cat(parts)).square().mean().backward()
        alone.step()
    for own, other in zip(network.state_dict().values(), reference.state_dict().values(), strict=True):
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize(
    ("shape", "text"), [((4,), "expected at least 2D input"), ((4, 5), "expected 3 channels")]
)
def test_wrong_inputs_are_refused_before_anything_is_sent(shape: tuple[int, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        hvd.SyncBatchNorm(3)(torch.zeros(shape))


def test_empty_batches_everywhere_are_refused() -> None:
    with pytest.raises(ValueError, match="empty batches on all ranks"):
        hvd.SyncBatchNorm(3)(torch.zeros(0, 3))


@pytest.mark.parametrize("come_by", [hvd.SyncBatchNorm, copy.deepcopy], ids=["made", "copied"])
def test_compiled_layers_leave_the_exchange_to_ordinary_python(come_by, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    origin = hvd.SyncBatchNorm(3)
    # As in a process that has no layer yet.
    monkeypatch.setattr(sync_batch_norm, "_is_kept_from_compilers", False)
    monkeypatch.setattr(sync_batch_norm, "_normalised", inspect.unwrap(sync_batch_norm._normalised))
    layer = come_by(origin if come_by is copy.deepcopy else 3).double()
    own = joined_batch(SHAPES["2D"])[hvd.rank()]
    expected = copy.deepcopy(layer)(own)
    torch.testing.assert_close(torch.compile(layer, backend=backend)(own), expected, rtol=0, atol=0)
    # Running statistics are compiled; what normalises a batch is not.
    assert any("lerp" in target for target in seen), seen
    assert not any("sqrt" in target or "apply" in target for target in seen), seen
