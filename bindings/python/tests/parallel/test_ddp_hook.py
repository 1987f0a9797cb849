"""`ddp_comm_hook`: DistributedDataParallel over gloo, with gradients that the engine reduces."""

import pytest
import torch
import torch.distributed as dist
from exact import STEPS, ExactNetwork, batch, check_expected, optimizer_of, process_group, train
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import farandole.torch as hvd
import farandole.torch.distributed  # noqa: F401 - lets gloo find its ranks under our launcher


@pytest.fixture(scope="module", autouse=True)
def world(job):
    """gloo's process group, of the ranks of the job."""
    with process_group("gloo"):
        yield


def hooked(network, state=None, hook=None, **options):
    parallel = DistributedDataParallel(network, **options)
    parallel.register_comm_hook(state, hook or hvd.ddp_comm_hook)
    return parallel


OPTIONS = [
    {},
    {"gradient_as_bucket_view": True},
    {"static_graph": True},
    {"find_unused_parameters": True, "bucket_cap_mb": 0.0001},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: next(iter(options), "default"))
@pytest.mark.parametrize("state", [None, hvd.global_process_set], ids=["None", "process set"])
def test_losses_are_those_of_one_process(state, options):
    network = hooked(ExactNetwork(), state, **options)
    check_expected({"hook": train(network, optimizer_of(network))}, hvd.rank(), hvd.size())


def test_gradients_accumulate_under_no_sync():
    network = hooked(ExactNetwork())
    with network.no_sync():
        network(**batch(0, hvd.rank(), hvd.size()))["loss"].backward()
    own = [parameter.grad.clone() for parameter in network.parameters()]
    network(**batch(0, hvd.rank(), hvd.size()))["loss"].backward()
    for parameter, before in zip(network.parameters(), own, strict=True):
        assert torch.equal(parameter.grad, hvd.allreduce(2 * before)), "the sum of both passes is averaged"


def test_parameters_that_a_step_does_not_use(job):
    """Rank 0 leaves one layer out in every other step."""

    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = ExactNetwork(), ExactNetwork()

        def forward(self, both, **rows):
            return self.first(**rows)["loss"] + (self.second(**rows)["loss"] if both else 0.0)

    network = hooked(Branches(), find_unused_parameters=True)
    for step in range(STEPS):
        both = hvd.rank() > 0 or step % 2 == 0
        network.zero_grad()
        rows = batch(step, hvd.rank(), hvd.size())
        network(both, **rows).backward()
        twins = zip(network.module.first.parameters(), network.module.second.parameters(), strict=True)
        for used, rarely_used in twins:
            share = used.grad.clone()
            if step % 2 == 1:
                # Rank 0 adds nothing: the others' part of the average.
                alone = torch.autograd.grad(network.module.first(**rows)["loss"], used)[0]
                share = hvd.allreduce(alone if hvd.rank() > 0 else torch.zeros_like(alone))
            assert torch.equal(rarely_used.grad, share)


@pytest.mark.parametrize("compression", [hvd.Compression.fp16, hvd.Compression.bf16], ids=["fp16", "bf16"])
def test_compression_sends_a_narrower_type(compression):
    network = hooked(ExactNetwork(), hvd.DdpCommState(compression=compression))
    network(**batch(0, hvd.rank(), hvd.size()))["loss"].backward()
    reference = ExactNetwork()
    reference(**batch(0, hvd.rank(), hvd.size()))["loss"].backward()
    differ = False
    for ours, own in zip(network.parameters(), reference.parameters(), strict=True):
        exact = hvd.allreduce(own.grad)
        narrow, kind = compression.compress(own.grad)
        assert torch.equal(ours.grad, compression.decompress(hvd.allreduce(narrow), kind))
        torch.testing.assert_close(ours.grad, exact, rtol=0.02, atol=0.02)
        differ |= ours.grad.dtype != narrow.dtype
    assert differ, "gradients have the type of their parameters"


def test_a_sum_in_place_of_the_average():
    network = hooked(ExactNetwork(), hvd.DdpCommState(op=hvd.Sum))
    network(**batch(0, hvd.rank(), hvd.size()))["loss"].backward()
    reference = ExactNetwork()
    reference(**batch(0, hvd.rank(), hvd.size()))["loss"].backward()
    for ours, own in zip(network.parameters(), reference.parameters(), strict=True):
        assert torch.equal(ours.grad, hvd.allreduce(own.grad, op=hvd.Sum))


def test_torchs_wrappers_of_hooks_take_ours():
    network = hooked(ExactNetwork(), None, default_hooks.fp16_compress_wrapper(hvd.ddp_comm_hook))
    losses = train(network, optimizer_of(network))
    assert len(set(losses)) == STEPS


def test_two_models_and_many_steps():
    """Names of buckets come again after some steps, and are never taken for those of the other model."""
    networks = [hooked(ExactNetwork(), bucket_cap_mb=0.0001), hooked(torch.nn.Linear(3, 2))]
    for step in range(80):
        rows = batch(step % STEPS, hvd.rank(), hvd.size())
        for network in networks:
            network.zero_grad()
        networks[0](**rows)["loss"].backward()
        networks[1](torch.full((1, 3), float(step + hvd.rank()))).sum().backward()
        mean = step + (hvd.size() - 1) / 2
        assert torch.equal(networks[1].module.weight.grad, torch.full((2, 3), mean)), step


def test_a_process_set_that_is_not_the_world(sets):
    for process_set in sets:
        group = dist.new_group(process_set.ranks, use_local_synchronization=True)
        network = DistributedDataParallel(torch.nn.Linear(3, 2), process_group=group)
        network.register_comm_hook(process_set, hvd.ddp_comm_hook)
        network(torch.full((1, 3), float(hvd.rank()))).sum().backward()
        mean = sum(process_set.ranks) / len(process_set.ranks)
        torch.testing.assert_close(network.module.weight.grad, torch.full((2, 3), mean))
        dist.destroy_process_group(group)


def backward_with(state):
    network = hooked(torch.nn.Linear(3, 2), state)
    network(torch.ones(1, 3)).sum().backward()


def test_misuse_is_explained():
    with pytest.raises(ValueError, match="is None, a ProcessSet or a DdpCommState, not str"):
        backward_with("world")
    with pytest.raises(ValueError, match="is not registered"):
        backward_with(hvd.ProcessSet([0]))
    hvd.shutdown()
    try:
        with pytest.raises(ValueError, match=r"call farandole.torch.init\(\) before the first backward pass"):
            backward_with(None)
    finally:
        hvd.init(process_sets="dynamic")
