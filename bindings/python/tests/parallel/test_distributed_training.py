"""What torch itself builds on process groups trains alike over gloo and over the backend "farandole", and as one
process would: bit by bit where arithmetic is exact (`exact`), to rounding elsewhere."""

import copy
import os

import pytest
import torch
import torch.distributed as dist
from exact import (
    BACKENDS,
    LEARNING_RATE,
    STEPS,
    ExactNetwork,
    batch,
    check_expected,
    losses_with_each,
    optimizer_of,
    process_group,
    train,
)
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import farandole.torch as hvd


@pytest.fixture(scope="module", autouse=True)
def place():
    """This rank and the number of ranks."""
    torch.set_num_threads(1)
    hvd.init()
    found = hvd.rank(), hvd.size()
    hvd.shutdown()
    return found


DDP_OPTIONS = [
    {},
    {"gradient_as_bucket_view": True},
    {"static_graph": True},
    {"find_unused_parameters": True, "bucket_cap_mb": 0.0001},
]


@pytest.mark.parametrize("options", DDP_OPTIONS, ids=lambda options: next(iter(options), "default"))
def test_ddp(place, options):
    def with_backend(_backend):
        network = DistributedDataParallel(ExactNetwork(), **options)
        return train(network, optimizer_of(network))

    check_expected(losses_with_each(with_backend), *place)


def test_ddp_with_accumulated_gradients(place):
    """The first half of each batch stays on its rank by `no_sync`."""

    def with_backend(_backend):
        network = DistributedDataParallel(ExactNetwork())
        optimizer = optimizer_of(network)
        losses = []
        for step in range(STEPS):
            whole = batch(step, *place)
            halves = [{key: rows.chunk(2)[part] for key, rows in whole.items()} for part in range(2)]
            optimizer.zero_grad()
            with network.no_sync():
                first = network(**halves[0])["loss"] / 2
                first.backward()
            second = network(**halves[1])["loss"] / 2
            second.backward()
            optimizer.step()
            losses.append((first + second).item())
        return losses

    check_expected(losses_with_each(with_backend), *place)


def test_fsdp2(place):
    def with_backend(_backend):
        network = ExactNetwork()
        for layer in network.layers:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer)
        fully_shard(network)
        return train(network, optimizer_of(network))

    check_expected(losses_with_each(with_backend), *place)


def test_fsdp1(place):
    def with_backend(_backend):
        network = FullyShardedDataParallel(ExactNetwork(), device_id=torch.device("cpu"), use_orig_params=True)
        return train(network, optimizer_of(network))

    check_expected(losses_with_each(with_backend), *place)


def test_zero_redundancy_optimizer(place):
    def with_backend(_backend):
        network = DistributedDataParallel(ExactNetwork())
        optimizer = ZeroRedundancyOptimizer(network.parameters(), torch.optim.SGD, lr=LEARNING_RATE)
        return train(network, optimizer)

    check_expected(losses_with_each(with_backend), *place)


def test_data_and_tensor_parallel(place):
    """Two ranks share each layer, and where there are more, pairs of them the data: a mesh of two dimensions."""
    rank, size = place

    def with_backend(_backend):
        mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("data", "tensor"))
        network = ExactNetwork()
        plan = {"layers.0": ColwiseParallel(), "layers.2": RowwiseParallel()}
        parallelize_module(network, mesh["tensor"], plan)
        fully_shard(network, mesh=mesh["data"])
        optimizer, losses = optimizer_of(network), []
        for step in range(STEPS):
            loss = network(**batch(step, rank // 2, size // 2))["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    check_expected(losses_with_each(with_backend), rank // 2, size // 2)


def test_power_sgd(place):
    """Its approximation divides and takes roots, so sums of more than two ranks round differently."""

    def with_backend(_backend):
        network = DistributedDataParallel(ExactNetwork().float())
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5
        )
        network.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        optimizer, losses = optimizer_of(network), []
        for step in range(STEPS):
            rows = {key: value.float() for key, value in batch(step, *place).items()}
            loss = network(**rows)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    found = losses_with_each(with_backend)
    if place[1] == 2:
        assert found["farandole"] == found["gloo"]
    torch.testing.assert_close(torch.tensor(found["farandole"]), torch.tensor(found["gloo"]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_checkpoint_of_shards_is_what_was_saved(place, backend, tmp_path_factory):
    rank, _ = place
    with process_group(backend):
        folder = [str(tmp_path_factory.mktemp("checkpoint")) if rank == 0 else None]
        dist.broadcast_object_list(folder)
        network = ExactNetwork()
        fully_shard(network)
        train(network, optimizer_of(network))
        torch.distributed.checkpoint.save(get_model_state_dict(network), checkpoint_id=folder[0])
        assert len([name for name in os.listdir(folder[0]) if name.endswith(".distcp")]) == place[1]
        fresh = ExactNetwork()
        fully_shard(fresh)
        state = get_model_state_dict(fresh)
        before = copy.deepcopy({name: shard.to_local() for name, shard in state.items()})
        torch.distributed.checkpoint.load(state, checkpoint_id=folder[0])
        set_model_state_dict(fresh, state)
        for (name, saved), loaded in zip(network.named_parameters(), fresh.parameters(), strict=True):
            assert torch.equal(saved.to_local(), loaded.to_local()), name
        assert any(not torch.equal(before[name], shard.to_local()) for name, shard in state.items()), "nothing to load"
        dist.barrier()
