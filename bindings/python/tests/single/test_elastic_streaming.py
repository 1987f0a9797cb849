"""Processes that get the state of a training before they join, in real jobs: while the others go on, when the member
that sends is lost, when they are lost themselves, and when what they have got is not right."""

from __future__ import annotations

import re
import textwrap

import pytest
from jobs import Job, run_job

pytestmark = pytest.mark.timeout(240)

TRAINING = """
import os, signal, sys
import torch
import farandole.torch as hvd
from waiting import lapse
from farandole import _native
from farandole.torch.elastic import replay

hvd.init(elastic_join="later")
me = int(os.environ["FARANDOLE_ELASTIC_MEMBER"])
torch.manual_seed(me)
# Most of it is frozen, so that updates are small beside the state.
model = torch.nn.Sequential(torch.nn.Linear(50, 50), torch.nn.BatchNorm1d(50), torch.nn.Linear(50, 50))
model.register_module("frozen", torch.nn.Linear(1000, 1000).requires_grad_(False))
sampler = hvd.elastic.ElasticSampler(range(100_000))
optimizer = torch.optim.Adam([one for one in model.parameters() if one.requires_grad], lr=1e-3)
policy = hvd.elastic.LinearScaling(optimizer)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
training = hvd.elastic.Training(
    optimizer, model, sampler=sampler, policy=policy, scheduler=scheduler,
    # The snapshot is on its way for a second.
    streamed=hvd.elastic.Streaming(bytes_per_second=4_000_000),
)

def forward(batch):
    return model[2](model[1](model[0](batch)))

replayed = 0

def counting(apply):
    def counted(*arguments):
        global replayed
        apply(*arguments)
        replayed += 1
    return counted

replay.apply = counting(replay.apply)

def make_step():
    with training.step():
        optimizer.zero_grad()
        torch.manual_seed(1000 * training.steps + hvd.rank())
        forward(torch.randn(8, 50)).square().sum().backward()
        optimizer.step()
        scheduler.step()
        after_step()

def after_step():
    pass

def state():
    moments = [value.reshape(-1).float() for one in optimizer.state.values() for value in one.values()]
    parameters = [parameter.detach().reshape(-1) for parameter in model.parameters()]
    rates = torch.tensor([group["lr"] for group in optimizer.param_groups], dtype=torch.float64)
    return torch.cat(parameters + moments).reshape(1, -1), rates.reshape(1, -1)

def check_equal():
    for one in state():
        everybody = hvd.allgather(one)
        assert all(torch.equal(other, everybody[0]) for other in everybody), "ranks have different states"
"""

LOOP = """
training.join()
joined_after = training.steps
is_complete = lambda: hvd.size() == ranks and _native.elastic_generation() >= last
# All ranks see the change after the same step.
complete_after = training.steps if is_complete() else None
while complete_after is None or training.steps < complete_after + 10:
    if me == 1 and training.steps == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    make_step()
    if complete_after is None and is_complete():
        complete_after = training.steps
    lapse("a step", 0.02)
training.call(check_equal)
print("member", me, "ends well; it joined after", joined_after, "steps and", replayed, "updates", flush=True)
"""


def run(script: str, ranks: int = 2, last: int = 3) -> Job:
    """A job until it is complete again in this generation, or a later one. Member 1 is killed at its beginning."""
    flags = ["--max-np", str(ranks), "--min-np", "1", "--blacklist-cooldown-range", "0", "0"]
    numbers = f"ranks, last = {ranks}, {last}\n"
    # Processes take long to start where others compute.
    job = run_job(ranks, numbers + TRAINING + textwrap.dedent(script) + LOOP, seconds=200, flags=flags)
    assert job.code == 0, job.output[-4000:] + job.errors[-6000:]
    return job


def member(job: Job, number: int) -> tuple[int, int]:
    """After how many steps a member joined, and how many updates it had got before."""
    found = re.search(rf"member {number} ends .* after (\d+) steps and (\d+) updates", job.output)
    assert found, job.output[-3000:] + job.errors[-3000:]
    return int(found[1]), int(found[2])


def sent(job: Job) -> list[tuple[int, int]]:
    """What was sent, of how much, when processes joined with a state."""
    return [(int(one), int(all_)) for one, all_ in re.findall(r"but (\d+) of (\d+) bytes", job.errors)]


def test_a_process_gets_the_state_while_the_others_go_on() -> None:
    job = run("")
    joined_after, updates = member(job, 2)
    # A snapshot takes a second, in which the others make steps; a process that is let in has made them, too.
    assert updates >= 10 and joined_after >= 15, (joined_after, updates)
    ((now, everything),) = sent(job)
    # The statistics of batches are each rank's own.
    assert now <= 2 * 50 * 4 + 8 and everything > 4_000_000, (now, everything)
    assert "tensors that were streamed to this process are not those" not in job.errors, job.errors[-3000:]


def test_another_member_is_asked_when_the_one_that_sends_is_killed() -> None:
    script = """
    followed = 0

    def after_step():
        global followed
        followed += training._streams._source.is_followed()
        if me == 2 and followed == 5:
            os.kill(os.getpid(), signal.SIGKILL)
    """
    job = run(script, ranks=3, last=4)
    assert "lost 2 members" in job.errors, job.errors[-3000:]
    member(job, 0)
    for number in (3, 4):
        _, updates = member(job, number)
        assert updates > 0, (number, job.errors[-3000:])
    for now, everything in sent(job):
        assert now < everything / 100, (now, everything)


def test_nobody_notices_a_process_that_is_killed_before_it_has_joined() -> None:
    script = """
    if me == 2:
        # It has got the snapshot, and not the updates of the second that this took.
        replay.restore = lambda *_unused: os.kill(os.getpid(), signal.SIGKILL)
    """
    job = run(script)
    assert "lost 2 members" in job.errors, job.errors[-3000:]
    assert "generation 3 has the members 0 3" in job.errors, job.errors[-3000:]
    _, updates = member(job, 3)
    assert updates > 0, job.errors[-3000:]


def test_what_was_streamed_and_is_not_right_is_sent() -> None:
    script = """
    def after_step():
        # Nothing of this is known to who makes the optimizer's steps alone.
        with torch.no_grad():
            model[0].weight.mul_(0.999)
    """
    job = run(script)
    _, updates = member(job, 2)
    ((now, everything),) = sent(job)
    assert updates > 0 and 50 * 50 * 4 <= now < everything, (updates, now, everything)
    assert "tensors that were streamed to this process are not those of rank 0 (0.weight" in job.errors, job.errors


def test_a_process_that_joins_later_has_no_rank_and_says_what_to_do() -> None:
    script = """
    import os
    import torch
    import farandole.torch as hvd

    def raises(call, words):
        try:
            call()
        except ValueError as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"nothing was raised: {words}")

    raises(lambda: hvd.init(elastic_join="soon"), "elastic_join")
    hvd.init(elastic_join="later")
    for call in (hvd.rank, hvd.size, hvd.local_rank, lambda: hvd.allreduce(torch.ones(1))):
        raises(call, "training.join()")
    model = torch.nn.Linear(4, 2)
    sampler = hvd.elastic.ElasticSampler(range(10))
    raises(lambda: len(sampler), "training.join()")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    policy = hvd.elastic.LinearScaling(optimizer, ranks=1)
    passes = hvd.elastic.KeepTotalBatch(16, 4)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    training = hvd.elastic.Training(
        optimizer, model, sampler=sampler, policy=lambda: (policy(), passes()), streamed=True
    )
    assert not hvd.is_initialized()
    training.join()
    assert hvd.size() == 2 and len(sampler) == 5 and optimizer.param_groups[0]["lr"] == 1.0 and passes.passes == 2
    for batch in training.batches(torch.utils.data.DataLoader(range(10), batch_size=5, sampler=sampler)):
        with training.step():
            optimizer.zero_grad()
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
    assert training.steps == 1
    print("made a step", flush=True)
    """
    job = run_job(2, script, seconds=200, flags=["--min-np", "1", "--max-np", "2"])
    assert job.code == 0 and job.output.count("made a step") == 2, job.output + job.errors[-4000:]


def test_a_training_cannot_be_streamed_by_a_process_that_has_joined() -> None:
    script = """
    import torch
    import farandole.torch as hvd

    hvd.init()
    model = torch.nn.Linear(4, 2)
    try:
        hvd.elastic.Training(torch.optim.SGD(model.parameters(), lr=0.1), model, streamed=True)
    except ValueError as error:
        assert 'hvd.init(elastic_join="later")' in str(error), error
        print("refused", flush=True)
    """
    job = run_job(1, script, seconds=200, flags=["--min-np", "1", "--max-np", "1"])
    assert job.code == 0 and "refused" in job.output, job.output + job.errors[-4000:]


def test_nothing_is_streamed_in_a_job_of_a_fixed_size() -> None:
    script = """
    import torch
    import farandole.torch as hvd

    hvd.init(elastic_join="later")
    assert hvd.size() == 1
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = hvd.elastic.Training(optimizer, model, streamed=True)
    with training.step():
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    assert training.steps == 1 and training._streams is None
    """
    job = run_job(1, script, seconds=200)
    assert job.code == 0, job.output + job.errors[-4000:]
