"""Optimizers of PyTorch warn where the parameters of ranks differ, once and by one rank, and change nothing else."""

from __future__ import annotations

import pytest
import torch
from jobs import run_job
from warnings_of_jobs import BEGIN, of

from farandole import _native
from farandole.torch.parameter_pieces import pieces, samples

pytestmark = pytest.mark.timeout(120)

_TORCH = BEGIN + """
import torch
import farandole.torch as hvd

def network(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))

def trained(name, model, steps=3, other=lambda step, model: None, parameters=None, **how):
    scene(name)
    sgd = torch.optim.SGD(model.parameters() if parameters is None else parameters, lr=0.01)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters(), **how)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()
        other(step, model)
    return optimizer
"""


def test_parameters_that_were_not_broadcast_are_noticed_before_the_first_step() -> None:
    job = run_job(
        2,
        _TORCH
        + """
hvd.init()
trained("forgotten", network(hvd.rank()))
model = network(hvd.rank())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
trained("broadcast", model)
trained("adasum", network(hvd.rank()), op=hvd.Adasum)

model = network(1)
model[0].requires_grad_(False)
if hvd.rank() == 1:
    model[0].bias.data[5] = 7.0
trained("frozen and in no optimizer", model, parameters=model[2].parameters())

def perturb(step, model):
    if step == 0 and hvd.rank() == 1:
        model[2].bias.data[1] += 1e-3
trained("later, and not asked for", network(1), other=perturb)

print("done")
""",
    )
    assert all(job.lines(rank) == ["done"] for rank in range(2)), job
    scenes = of(job)
    assert scenes["forgotten"] == [
        "farandole: parameters differ between ranks before the first step; was "
        "hvd.broadcast_parameters(model.state_dict(), root_rank=0) forgotten? The first that differs is "
        '"0.weight": rank 0 and rank 1 differ'
    ]
    assert scenes["broadcast"] == [] and scenes["later, and not asked for"] == []
    assert len(scenes["adasum"]) == 1
    [frozen] = scenes["frozen and in no optimizer"]
    assert 'is "0.bias": rank 0 and rank 1 differ' in frozen


def test_process_sets_compare_their_own_ranks_and_name_those_in_the_minority() -> None:
    job = run_job(
        4,
        _TORCH
        + """
some = hvd.ProcessSet([0, 2, 3])
hvd.init(process_sets=[some])
# Rank 1 is not in the set, and its parameters are its own.
trained("alike in the set", network(1 if hvd.rank() != 1 else 5), process_set=some)
trained("another in the set", network(2 if hvd.rank() == 2 else 1), process_set=some)
if hvd.rank() in (0, 2, 3):
    trained("an optimizer on some ranks", network(1), process_set=some)
trained("all", network(2 if hvd.rank() == 3 else 1))
# Rank 3 has no data.
scene("a rank has joined")
if hvd.rank() == 3:
    hvd.join()
else:
    trained("a rank has joined", network(1))
    hvd.join()
print("done")
""",
    )
    assert all(job.lines(rank) == ["done"] for rank in range(4)), job
    scenes = of(job)
    assert scenes["alike in the set"] == scenes["an optimizer on some ranks"] == scenes["a rank has joined"] == []
    assert scenes["another in the set"][0].endswith('"0.weight": rank 2 differs from ranks 0, 3')
    assert scenes["all"][0].endswith('"0.weight": rank 3 differs from ranks 0–2')


def test_a_single_element_that_changes_is_found_after_as_many_steps_as_asked_for() -> None:
    job = run_job(
        3,
        _TORCH
        + """
os.environ["FARANDOLE_CHECK_PARAMETERS"] = "4"
hvd.init()

def perturb(step, model):
    if step == 5 and hvd.rank() == 1:
        model[2].weight.data[1, 17] += 1e-6
model = network(1)
trained("every fourth", model, steps=14, other=perturb)
trained("never different", network(1), steps=9)
trained("accumulated", network(1), steps=9, backward_passes_per_step=2)
print("done")
""",
    )
    assert all(job.lines(rank) == ["done"] for rank in range(3)), job
    scenes = of(job)
    assert scenes["every fourth"] == [
        "farandole: parameters differ between ranks after 8 steps; does the script change parameters on some ranks "
        'only, or is memory of a host faulty? The first that differs is "2.weight": rank 1 differs from ranks 0, 2'
    ]
    assert scenes["never different"] == scenes["accumulated"] == []


def test_nothing_is_compared_where_it_is_switched_off_or_a_rank_is_alone() -> None:
    script = """
import collections
from farandole import _native
asked = collections.Counter()
import farandole.torch.parameter_pieces as of_torch

def counting(named, whole):
    asked["compared"] += 1
    return original_pieces(named, whole)

original_pieces, of_torch.pieces = of_torch.pieces, counting
hvd.init()
trained("alone or off", network(hvd.rank()))
print(asked["compared"])
"""
    alone = run_job(1, _TORCH + script)
    off = run_job(2, _TORCH + 'os.environ["FARANDOLE_CHECK_PARAMETERS"] = "0"\n' + script)
    on = run_job(2, _TORCH + script)
    assert alone.lines(0) == ["0"] and off.lines(0) == off.lines(1) == ["0"] and on.lines(0) == ["1"], (alone, off, on)
    assert of(alone)["alone or off"] == of(off)["alone or off"] == [] and len(of(on)["alone or off"]) == 1


def test_ranks_that_are_asked_for_different_checks_are_refused_before_they_wait_for_each_other() -> None:
    job = run_job(
        2,
        _TORCH
        + """
os.environ["FARANDOLE_CHECK_PARAMETERS"] = "1" if os.environ["FARANDOLE_RANK"] == "0" else "2"
hvd.init()
""",
    )
    assert job.code != 0
    assert "the ranks differ in FARANDOLE_CHECK_PARAMETERS: 1 on rank 0, 2 on rank 1" in job.errors, job


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_sample_on_a_device_has_the_bytes_of_one_in_host_memory(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    shapes: list[tuple[int, ...]] = [(3,), (64, 16), (1025,), (300, 41), (7, 3, 5, 5, 9), ()]
    tensors = [(place, f"p{place}", torch.randn(shape).to(dtype)) for place, shape in enumerate(shapes)]
    gathered = dict(samples(tensors))
    assert sorted(gathered) == list(range(len(shapes)))
    for place, name, tensor in tensors:
        flat = tensor.reshape(-1).view(torch.uint8)
        blocks, block_bytes, distance = _native.sample_of(len(flat))
        expected = torch.cat([flat[at * distance : at * distance + block_bytes] for at in range(blocks)])
        found_name, address, size_bytes, whole_bytes, owner = gathered[place]
        assert (found_name, size_bytes, whole_bytes) == (name, len(expected), len(flat))
        assert _native.state_digests([(address, size_bytes, owner)]) == _native.state_digests(
            [(expected.data_ptr(), len(expected), expected)]
        )


def test_what_is_no_plain_tensor_counts_by_its_name_alone() -> None:
    channels_last = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    sliced = torch.randn(8, 8)[:, ::2]
    sparse = torch.eye(3).to_sparse()
    meta = torch.empty(4, device="meta")
    found = pieces([("a", channels_last), ("b", sliced), ("c", sparse), ("d", meta)], whole=False)
    assert [piece[0] for piece in found] == ["a", "b", "c", "d"]
    assert found[0][1] == channels_last.data_ptr(), "read where it lies"
    assert [piece[2] for piece in found] == [96 * 4, 32 * 4, 0, 0]


def test_a_loop_over_ddp_compares_parameters_by_a_call_of_its_own() -> None:
    job = run_job(
        2,
        BEGIN
        + """
import torch
import torch.distributed as dist
import farandole.torch as hvd
import farandole.torch.distributed
dist.init_process_group("farandole")
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(60, 60))
check = hvd.elastic.ParameterCheck(model.module.named_parameters(), every=2)
found = []
for step in range(1, 7):
    model(torch.ones(2, 60)).sum().backward()
    if step == 5 and dist.get_rank() == 1:
        model.module.bias.data[3] += 1e-3
    try:
        check(step)
    except hvd.elastic.ParametersDifferError as error:
        found.append((step, error.ranks, "The first that differs is bias." in str(error)))
print(found)
dist.destroy_process_group()
""",
    )
    assert all(job.lines(rank) == ["[(6, [0, 1], True)]"] for rank in range(2)), job
