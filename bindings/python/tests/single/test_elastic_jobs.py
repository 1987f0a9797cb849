"""Elastic jobs with real losses: `farandole run --min-np`, processes that are killed or stopped, and what goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from jobs import command, environment

pytestmark = pytest.mark.timeout(240)

TRAINING = """
import os, signal, sys, time
import torch
import farandole.torch as hvd
from farandole import _native
from waiting import lapse

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
    lapse("a step", 0.005)
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


def test_a_report_says_what_recoveries_have_cost(tmp_path: Path) -> None:
    script = "want = 3\n" + TRAINING + "how = signal.SIGKILL\n" + LOOP
    flags = ["--min-np", "2", "--blacklist-cooldown-range", "0", "0", "--trace", str(tmp_path)]
    check(run(script, *flags))
    names = {path.name for path in tmp_path.iterdir()}
    assert {"rank-00001.generation-1.trace", "rank-00001.generation-2.trace"} <= names, names
    words = [command(), "report", str(tmp_path), "--json"]
    report = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    elastic = json.loads(report.stdout)["elastic"]
    first, *_, last = elastic["generations"]
    assert (first["ranks"], first["recovery"], last["ranks"]) == (3, None, 3), elastic
    assert elastic["recoveries"] == len(elastic["generations"]) - 1 and 0 < elastic["lost_percent"] < 100, elastic
    second = elastic["generations"][1]
    assert [left["member"] for left in second["left"]] == [1] and second["left"][0]["cause"], second
    recovery = second["recovery"]
    phases = ["interrupted", "leaving", "agreeing", "connecting", "synchronising"]
    assert sum(recovery[f"{phase}_ns"] for phase in phases) == recovery["ns"] > 0, recovery
    assert recovery["connecting_ns"] > 0 and recovery["first_step_ns"] > 0, recovery
    assert recovery["step"] == "repeated", recovery
    assert any(generation["joined"] == [3] for generation in elastic["generations"][1:]), elastic
    # The others' waits for the dead one are no communication of the generation that is shown.
    shown = [command(), "report", str(tmp_path), "--generation", "1"]
    assert "What follows is about generation 1" in subprocess.run(shown, capture_output=True, text=True).stdout


@pytest.mark.alone
def test_a_rank_that_keeps_the_others_waiting_is_replaced(tmp_path: Path) -> None:
    script = TRAINING + """
while (hvd.size() < 3 or _native.elastic_generation() == 1) and training.steps < 3000:
    with training.step():
        optimizer.zero_grad()
        model(torch.full((2, 8), 1.0 + hvd.rank())).sum().backward()
        time.sleep(0.25 if me == 1 else 0.01)
        optimizer.step()
    generations.add(_native.elastic_generation())
print("member", me, "ends with", hvd.size(), "ranks in generation", max(generations), flush=True)
"""
    flags = ["--min-np", "2", "--replace-slow=8", "--blacklist-cooldown-range", "0", "0", "--trace", str(tmp_path)]
    ended = run(script, *flags)
    check(ended)
    words = [command(), "report", str(tmp_path)]
    report = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert "member 1 is gone: member 1 on" in report.stdout and "was slow: as rank 1" in report.stdout, report.stdout
    assert "was slow: as rank 1 of generation 1 it waited for" in ended.stderr, ended.stderr[-3000:]
    assert "(--replace-slow), and was ended" in ended.stderr, ended.stderr[-3000:]
    for member in (0, 2):
        assert f"member {member} ends with" in ended.stdout, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert "member 1 ends" not in ended.stdout


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
    ended = run(script, "--min-np", "3", "--elastic-timeout", "20")
    assert ended.returncode != 0, ended.stdout[-3000:]
    # Who of the two gives up first sees both.
    assert "members are left and the job needs 3" in ended.stdout + ended.stderr, ended.stderr[-4000:]
