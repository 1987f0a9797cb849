"""The optimizer beside everything else that torch offers: scalers, autocast, clipping, schedulers, compiled models,
hooks, checkpoints."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
from models import assert_alike, batches, own_part, same_everywhere, small_network
from torch import nn
from torch.nn.functional import mse_loss
from waiting import lapse

import farandole.torch as hvd

pytestmark = pytest.mark.usefixtures("job")


def distributed_sgd(network: nn.Module, **options) -> torch.optim.Optimizer:
    return hvd.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters(), **options
    )


def test_it_is_an_optimizer_of_the_users_class_with_its_state() -> None:
    network = small_network()
    own = torch.optim.Adam(network.parameters(), lr=0.3, betas=(0.8, 0.9))
    network(torch.randn(2, 6)).sum().backward()
    own.step()
    optimizer = hvd.DistributedOptimizer(own, network.named_parameters())
    assert isinstance(optimizer, torch.optim.Adam)
    assert type(optimizer).__name__ == "Adam"
    assert optimizer.defaults["betas"] == (0.8, 0.9)
    assert set(optimizer.state) == set(network.parameters())
    assert "lr: 0.3" in repr(optimizer)


def test_parameters_without_names_are_numbered_and_can_be_read_as_with_horovod() -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    groups = [{"params": layer.parameters()} for layer in network]
    names = hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1))._parameter_names
    assert set(names) == set(network.parameters())
    assert len(set(names.values())) == 4
    assert hvd.allgather_object(sorted(names.values())) == [sorted(names.values())] * hvd.size()


def test_an_optimizer_with_needed_arguments_can_be_wrapped() -> None:
    class Picky(torch.optim.SGD):
        def __init__(self, params, lr: float, motto: str) -> None:
            super().__init__(params, lr=lr)
            self.motto = motto

    network = small_network()
    optimizer = hvd.DistributedOptimizer(Picky(network.parameters(), 0.1, "festina lente"), network.named_parameters())
    assert optimizer.motto == "festina lente"
    network(torch.randn(2, 6)).sum().backward()
    optimizer.step()
    assert all(same_everywhere(p) for p in network.parameters())


@pytest.mark.parametrize("recipe", ["plain", "unscale", "horovod"])
def test_a_grad_scaler_skips_a_step_on_all_ranks_or_on_none(recipe: str) -> None:
    network = small_network()
    optimizer = distributed_sgd(network)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
    reference = small_network()
    alone = torch.optim.SGD(reference.parameters(), lr=0.1)
    scales = []
    for iteration, (x, y) in enumerate(batches(6)):
        optimizer.zero_grad()
        loss = mse_loss(network(own_part(x)), own_part(y))
        if iteration == 2 and hvd.rank() == 0:
            loss = loss * float("inf")  # On one rank only; all must skip.
        scaler.scale(loss).backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if recipe == "plain":
                scaler.step(optimizer)
            elif recipe == "unscale":
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(network.parameters(), 1e6)
                scaler.step(optimizer)
            else:
                optimizer.synchronize()
                scaler.unscale_(optimizer)
                with optimizer.skip_synchronize():
                    scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        if iteration != 2:
            alone.zero_grad()
            mse_loss(reference(x), y).backward()
            alone.step()
    assert scales[2] < scales[1]
    assert len({tuple(each) for each in hvd.allgather_object(scales)}) == 1
    assert_alike(network, reference)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_a_fused_optimizer_and_a_scaler_get_reduced_gradients(name: str) -> None:
    kind = getattr(torch.optim, name)
    # A large epsilon: otherwise steps do not depend on the scale of gradients, and rounding decides tiny ones.
    options = {"lr": 0.01} if name == "SGD" else {"lr": 0.01, "eps": 0.1}
    network, reference = small_network(), small_network()
    optimizer = hvd.DistributedOptimizer(kind(network.parameters(), fused=True, **options), network.named_parameters())
    alone = kind(reference.parameters(), **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    scales = []
    for iteration, (x, y) in enumerate(batches(4)):
        optimizer.zero_grad()
        loss = mse_loss(network(own_part(x)), own_part(y))
        if hvd.rank() == 0:
            # Gradients of the other ranks are still in flight when their scalers want to look.
            lapse("rank 0, which is late", 0.05)
            if iteration == 2:
                loss = loss * float("inf")  # On one rank only; all must skip.
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        if iteration != 2:
            alone.zero_grad()
            mse_loss(reference(x), y).backward()
            alone.step()
    assert scales == [16.0, 16.0, 8.0, 8.0]
    assert all(same_everywhere(p) for p in network.parameters())
    assert_alike(network, reference)


def test_autocast_gives_gradients_of_the_parameters_type() -> None:
    network = small_network()
    optimizer = distributed_sgd(network)
    for x, y in batches(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = mse_loss(network(own_part(x)).float(), own_part(y))
        loss.backward()
        optimizer.step()
    assert all(p.grad.dtype == torch.float32 and same_everywhere(p) for p in network.parameters())


def test_clipping_between_synchronize_and_step() -> None:
    network, reference = small_network(), small_network()
    optimizer, alone = distributed_sgd(network), torch.optim.SGD(reference.parameters(), lr=0.1)
    for x, y in batches(4):
        optimizer.zero_grad()
        mse_loss(network(own_part(x)), own_part(y)).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(network.parameters(), 0.05)
        with warnings.catch_warnings(), optimizer.skip_synchronize():
            warnings.simplefilter("error")
            optimizer.step()
        alone.zero_grad()
        mse_loss(reference(x), y).backward()
        nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
        alone.step()
    assert_alike(network, reference)


@pytest.mark.parametrize("made", ["after", "before"])
def test_schedulers_set_the_rate_whenever_they_were_made(made: str) -> None:
    network = small_network()
    own = torch.optim.SGD(network.parameters(), lr=1.0)
    early = torch.optim.lr_scheduler.StepLR(own, 1, gamma=0.5) if made == "before" else None
    optimizer = hvd.DistributedOptimizer(own, network.named_parameters())
    scheduler = early or torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    rates = []
    for x, y in batches(3):
        optimizer.zero_grad()
        mse_loss(network(own_part(x)), own_part(y)).backward()
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if made == "before" else "error")
            scheduler.step()
    assert rates == [1.0, 0.5, 0.25]
    assert all(same_everywhere(p) for p in network.parameters())


def test_parameters_that_are_added_later_are_reduced() -> None:
    network, extra = small_network(), nn.Linear(3, 2)
    hvd.broadcast_parameters(extra.state_dict(), 0)
    optimizer = distributed_sgd(network)
    for iteration in range(5):
        if iteration == 2:
            optimizer.add_param_group({"params": extra.parameters(), "lr": 0.01})
        optimizer.zero_grad()
        extra.zero_grad()
        extra(network(torch.randn(3, 6))).square().sum().backward()
        optimizer.step()
    assert all(same_everywhere(p) for p in [*network.parameters(), *extra.parameters()])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models_train_as_others(backend: str) -> None:
    network, reference = small_network(), small_network()
    optimizer, alone = distributed_sgd(network), torch.optim.SGD(reference.parameters(), lr=0.1)
    compiled = torch.compile(network, backend=backend)
    for x, y in batches(4):
        optimizer.zero_grad()
        mse_loss(compiled(own_part(x)), own_part(y)).backward()
        optimizer.step()
        alone.zero_grad()
        mse_loss(reference(x), y).backward()
        alone.step()
    assert_alike(network, reference)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_takes_set_to_none(set_to_none: bool) -> None:
    network = small_network()
    optimizer = distributed_sgd(network)
    for _ in range(3):
        network(torch.randn(3, 6)).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
        assert all((p.grad is None) == set_to_none for p in network.parameters())
        assert set_to_none or all(not p.grad.any() for p in network.parameters())


def test_a_closure_is_reduced_before_the_step() -> None:
    network, reference = small_network(), small_network()
    optimizer, alone = distributed_sgd(network), torch.optim.SGD(reference.parameters(), lr=0.1)
    for x, y in batches(3):

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = mse_loss(network(own_part(x)), own_part(y))  # noqa: B023 - called at once
            loss.backward()
            return loss

        assert optimizer.step(closure).item() > 0
        alone.zero_grad()
        mse_loss(reference(x), y).backward()
        alone.step()
    assert_alike(network, reference)


def test_hooks_around_step_run_once_and_see_reduced_gradients() -> None:
    network = small_network()
    optimizer = distributed_sgd(network)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append([p.grad.clone() for p in network.parameters()]))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    for _ in range(2):
        optimizer.zero_grad()
        network(torch.randn(3, 6)).sum().backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())  # torch wraps `step` again here.
    assert [entry == "after" for entry in seen] == [False, True, False, True]
    assert all(same_everywhere(gradient) for gradient in seen[0])


def test_a_checkpoint_goes_on_where_it_was_made() -> None:
    network = small_network()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(network.parameters(), lr=0.01), network.named_parameters())
    data = batches(4)

    def train(model: nn.Module, opt: torch.optim.Optimizer, part) -> None:
        for x, y in part:
            opt.zero_grad()
            mse_loss(model(own_part(x)), own_part(y)).backward()
            opt.step()

    train(network, optimizer, data[:2])
    file = io.BytesIO()
    torch.save({"model": network.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file)
    again = small_network(seed=99)
    again.load_state_dict(loaded["model"])
    resumed = hvd.DistributedOptimizer(torch.optim.Adam(again.parameters(), lr=0.5), again.named_parameters())
    resumed.load_state_dict(loaded["optimizer"])
    train(network, optimizer, data[2:])
    train(again, resumed, data[2:])
    assert_alike(again, network, rtol=0, atol=0)


def test_the_number_of_passes_can_be_changed() -> None:
    network = small_network()
    optimizer = distributed_sgd(network)
    for passes in (1, 3, 2):
        optimizer.set_backward_passes_per_step(passes)
        assert optimizer.backward_passes_per_step == passes
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(passes):
                network(torch.randn(3, 6)).sum().backward()
            optimizer.step()
        assert all(same_everywhere(p) for p in network.parameters())


def test_a_compressor_of_the_scripts_own() -> None:
    class Halving(hvd.Compression.none):
        """Halves on the way, doubles at the end, and counts."""

        compressed = 0

        @classmethod
        def compress(cls, tensor: torch.Tensor):
            cls.compressed += 1
            return tensor / 2, "context"

        @staticmethod
        def decompress(tensor: torch.Tensor, ctx: str) -> torch.Tensor:
            assert ctx == "context"
            return tensor * 2

    network, reference = small_network(), small_network()
    for model, options in ((network, {"compression": Halving}), (reference, {})):
        optimizer = distributed_sgd(model, **options)
        for x, y in batches(3):
            optimizer.zero_grad()
            mse_loss(model(own_part(x)), own_part(y)).backward()
            optimizer.step()
        del optimizer
    assert Halving.compressed == 3 * len(list(network.parameters()))
    assert_alike(network, reference, rtol=1e-6, atol=1e-7)


def test_a_network_can_be_copied_while_it_is_trained() -> None:
    network = small_network()
    optimizer = distributed_sgd(network)
    network(torch.randn(3, 6)).sum().backward()
    optimizer.step()
    twin = copy.deepcopy(network)
    twin(torch.randn(3, 6)).sum().backward()
    optimizer.zero_grad()  # Would be refused if the twin's gradients had left.
    network(torch.randn(3, 6)).sum().backward()
    optimizer.step()
    assert all(same_everywhere(p) for p in network.parameters())
