"""Elastic jobs with real losses: `farandole run --min-np`, processes that are killed or stopped, and what goes on."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from jobs import command, environment

pytestmark = pytest.mark.timeout(240)

TRAINING = """
import os, signal, sys, time
import torch
import farandole.torch as hvd
from farandole import _native

hvd.init()
assert hvd.elastic is not None and _native.elastic_enabled()
me = int(os.environ["FARANDOLE_ELASTIC_MEMBER"])
torch.manual_seed(1)
model = torch.nn.Linear(8, 4)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
training = hvd.elastic.Training(optimizer, model)
training.join()
generations = {_native.elastic_generation()}
"""

LOOP = """
while training.steps < 60 or hvd.size() < want and training.steps < 3000:
    with training.step():
        if me == 1 and training.steps == 20:
            os.kill(os.getpid(), how)
        optimizer.zero_grad()
        model(torch.full((2, 8), 1.0 + hvd.rank())).sum().backward()
        optimizer.step()
    generations.add(_native.elastic_generation())
    time.sleep(0.005)
weights = training.call(lambda: hvd.allgather(model.weight.detach().reshape(1, -1)))
assert all(torch.equal(other, weights[0]) for other in weights)
print("member", me, "ends with", hvd.size(), "ranks in generation", max(generations), flush=True)
"""


def run(script: str, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    words = [command(), "run", "-np", "3", "--max-np", "3", *flags, sys.executable, "-c", textwrap.dedent(script)]
    return subprocess.run(
        words, env=environment(**variables), capture_output=True, text=True, timeout=200, check=False
    )


def check(ended: subprocess.CompletedProcess[str]) -> None:
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]


def test_survivors_of_a_killed_rank_go_on_and_a_replacement_joins() -> None:
    script = "want = 3\n" + TRAINING + "how = signal.SIGKILL\n" + LOOP
    ended = run(script, "--min-np", "2", "--blacklist-cooldown-range", "0", "0")
    check(ended)
    for member in (0, 2, 3):
        assert f"member {member} ends with 3 ranks" in ended.stdout, ended.stdout[-3000:]
    assert "lost 1 member" in ended.stderr, ended.stderr[-3000:]


def test_survivors_of_a_stopped_rank_go_on_without_it() -> None:
    script = "want = 2\n" + TRAINING + "how = signal.SIGSTOP\n" + LOOP
    ended = run(script, "--min-np", "1", "--max-np", "3", FARANDOLE_HEARTBEAT_TIMEOUT="2")
    check(ended)
    assert "member 0 ends with" in ended.stdout and "member 2 ends with" in ended.stdout, ended.stdout[-3000:]
    assert "member 1 ends" not in ended.stdout


SETS = """
import os, signal, sys, time
import torch
import farandole.torch as hvd

hvd.init(process_sets="dynamic")
me = int(os.environ["FARANDOLE_ELASTIC_MEMBER"])
torch.manual_seed(1)
model = torch.nn.Linear(8, 4)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
made = []

def make_sets():
    # Somebody may be lost in here, and it is called again.
    made.append(hvd.add_process_set(list(range(hvd.size() - 1))))

training = hvd.elastic.Training(optimizer, model, policy=make_sets)
training.join()
while training.steps < 40:
    with training.step():
        if me == 1 and training.steps == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        if made[-1].included():
            assert hvd.allreduce(torch.ones(3), op=hvd.Sum, process_set=made[-1]).eq(hvd.size() - 1).all()
        optimizer.step()
assert hvd.size() == 2 and len(made) >= 2, (hvd.size(), len(made))
try:
    hvd.allreduce(torch.ones(3), process_set=made[0])
except ValueError as error:
    assert "before a change of an elastic job" in str(error), error
else:
    raise AssertionError("a set of another generation was used")
training.call(lambda: hvd.allreduce(torch.ones(1)))
print("member", me, "made", len(made), "sets", flush=True)
"""


def test_process_sets_are_made_anew_after_a_change() -> None:
    ended = run(SETS, "--min-np", "2", "--reset-limit", "9", "--blacklist-cooldown-range", "100", "100")
    check(ended)
    for member in (0, 2):
        assert f"member {member} made " in ended.stdout, ended.stdout[-3000:]


def test_a_function_of_horovod_begins_again_with_its_last_commit() -> None:
    script = """
    import os, signal
    import torch
    import farandole.torch as hvd

    hvd.init()
    me = int(os.environ["FARANDOLE_ELASTIC_MEMBER"])
    model = torch.nn.Linear(4, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    resets = []

    @hvd.elastic.run
    def train(state):
        while state.batch < 40:
            if me == 1 and state.batch == 13:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            model(torch.ones(2, 4) * (hvd.rank() + 1)).sum().backward()
            optimizer.step()
            state.batch += 1
            if state.batch % 5 == 0:
                state.commit()

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0)
    state.register_reset_callbacks([lambda: resets.append((state.batch, hvd.size()))])
    train(state)
    print("member", me, "did", state.batch, "resets", resets[:1], flush=True)
    """
    ended = run(script, "--min-np", "2")
    check(ended)
    for member in (0, 2):
        assert f"member {member} did 40 resets [(10, " in ended.stdout, ended.stdout[-3000:] + ended.stderr[-3000:]


def test_a_job_below_its_smallest_size_ends_with_the_cause() -> None:
    script = """
    import os, signal, sys
    import torch
    import farandole.torch as hvd

    me = int(os.environ["FARANDOLE_ELASTIC_MEMBER"])
    if me > 2:
        sys.exit("a replacement that cannot start")
    hvd.init()
    hvd.allreduce(torch.ones(2))
    if me == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            hvd.allreduce(torch.ones(2))
    except hvd.HorovodInternalError:
        hvd.shutdown()
        hvd.init()
    """
    ended = run(script, "--min-np", "3", "--elastic-timeout", "3")
    assert ended.returncode != 0, ended.stdout[-3000:]
    assert "2 members are left and the job needs 3" in ended.stdout + ended.stderr, ended.stderr[-4000:]
