"""PyTorch's tensors and JAX's arrays in device memory, on machines without a device: host memory stands in for it.

The front ends, the engine's plane for devices and its mappings between processes are what a GPU would have; only the
device is not (`crates/device/src/stand_in.rs`).
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
from jobs import command, environment, run_job

PARALLEL = pathlib.Path(__file__).parents[1] / "parallel"

STAND_IN = "FARANDOLE_TEST_STAND_IN_DEVICE"

pytestmark = pytest.mark.timeout(300)

HEAD = f"""
import os
os.environ["{STAND_IN}"] = "1"
import torch
import farandole.torch as hvd
from farandole import _native
from farandole.torch import device_memory, handles, run_ahead
from waiting import wait_for

hvd.init()
"""
"""Scripts begin with this."""


def check(job) -> None:
    assert job.code == 0, f"{job.output}\n{job.errors}"


@pytest.mark.parametrize(
    "files",
    [
        ("test_ops_allreduce.py", "test_ops_moves.py", "test_ops_errors.py", "test_ops_gradients.py"),
        ("test_distributed.py", "test_ddp_hook.py"),
        ("test_optimizer_equality.py", "test_optimizer_misuse.py", "test_functions.py", "test_sync_batch_norm.py"),
        ("test_optimizer_adasum.py",),
        ("../jax/test_ops_reduce.py", "../jax/test_ops_moves.py"),
    ],
)
def test_what_works_in_host_memory_works_in_device_memory(files) -> None:
    words = [command(), "run", "-np", "2", sys.executable, "-m", "pytest", "-q", "--exitfirst"]
    words += ["-p", "no:cacheprovider", *(str(PARALLEL / file) for file in files)]
    variables = {STAND_IN: "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    ended = subprocess.run(
        words, env=environment(**variables), capture_output=True, text=True, timeout=280, check=False
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    assert "[0]<stdout>:" in ended.stdout and " passed" in ended.stdout


def test_tensors_are_worked_on_where_they_lie() -> None:
    check(
        run_job(
            2,
            HEAD
            + """
def host_memory(*_arguments, **_options):
    raise AssertionError("a tensor went through host memory")

for name in ("allreduce_many", "allreduce_batch", "allgather", "alltoall", "broadcast", "reducescatter"):
    setattr(_native, name, host_memory)
rank, size = hvd.rank(), hvd.size()
mine = torch.arange(4.0) + rank
assert torch.equal(hvd.allreduce(mine, op=hvd.Sum), 2 * torch.arange(4.0) + 1)
orthogonal = torch.eye(2)[rank]
assert torch.equal(hvd.allreduce(orthogonal, op=hvd.Adasum), torch.ones(2))
for total in hvd.grouped_allreduce([torch.full((3,), 2.0), torch.full((5000,), 0.5)], op=hvd.Adasum):
    assert total.eq(total[0]).all() and total[0].item() in (2.0, 0.5), total
assert torch.equal(hvd.broadcast(mine, 1), torch.arange(4.0) + 1)
assert torch.equal(hvd.allgather(mine[: rank + 1]), torch.tensor([0.0, 1.0, 2.0]))
parts = [hvd.grouped_allgather([mine, mine[:1]]), hvd.grouped_reducescatter([mine, mine], op=hvd.Sum)]
assert torch.equal(parts[0][1], torch.tensor([0.0, 1.0]))
assert torch.equal(parts[1][0], (2 * torch.arange(4.0) + 1)[2 * rank : 2 * rank + 2])
came, splits = hvd.alltoall(mine, torch.tensor([1, 3] if rank == 0 else [2, 2]))
assert came.tolist() == ([0.0, 1.0, 2.0] if rank == 0 else [1.0, 2.0, 3.0, 3.0, 4.0]), came
assert splits.tolist() == ([1, 2] if rank == 0 else [3, 2]), splits
# Whether a tensor is contiguous is each rank's own business.
square = torch.ones(3, 2).t() if rank else torch.ones(2, 3)
assert hvd.allreduce_(square, op=hvd.Sum).eq(2).all()
network = torch.nn.Linear(3, 2)
hvd.broadcast_parameters(network.state_dict(), 0)
for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.25), network.named_parameters(), compression=compression
    )
    for step in range(4):
        optimizer.zero_grad()
        network(torch.full((1, 3), float(rank + step))).sum().backward()
        optimizer.step()
        assert network.weight.grad.eq(step + 0.5).all(), (compression, network.weight.grad)
hvd.shutdown()
""",
            seconds=120,
        )
    )


def test_compressed_gradients_leave_in_one_call() -> None:
    check(
        run_job(
            2,
            HEAD
            + """
network = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(4)))
hvd.broadcast_parameters(network.state_dict(), 0)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters(), compression=hvd.Compression.bf16
)
calls = []
kinds = []
begin = device_memory.DeviceWork.__init__

def counted(work, handle, *rest):
    calls.append(len(handle))
    begin(work, handle, *rest)

device_memory.DeviceWork.__init__ = counted
fused = torch._foreach_copy_

def noted(targets, sources):
    kinds.append((targets[0].dtype, len(targets)))
    return fused(targets, sources)

torch._foreach_copy_ = noted
for _ in range(3):
    calls.clear(), kinds.clear()
    optimizer.zero_grad()
    network(torch.ones(2, 3)).sum().backward()
    optimizer.step()
assert calls == [8], calls
assert kinds == [], "the engine narrows and widens when it packs and unpacks"
assert all(tensor.grad.dtype is torch.float32 for tensor in network.parameters())
hvd.shutdown()
""",
            seconds=120,
        )
    )


@pytest.mark.parametrize("setting", ["0", "1"])
def test_the_setting_says_whether_the_host_runs_ahead(setting: str) -> None:
    check(
        run_job(
            2,
            f'import os; os.environ["HOROVOD_ENABLE_ASYNC_COMPLETION"] = "{setting}"\n'
            + HEAD
            + f"""
runs_ahead = {setting!r} != "0"
for name in ("a", "a", None):
    tensor = torch.full((3,), float(hvd.rank()))
    handle = hvd.allreduce_async_(tensor, name=name, op=hvd.Sum)
    assert handles._pending[handle].work.handle.runs_ahead == runs_ahead
    hvd.synchronize(handle)
    # What stands in for a device has done what is queued.
    assert tensor.tolist() == [1.0] * 3
    assert all(work.is_over() for work in run_ahead._under_way)
hvd.shutdown()
assert not run_ahead._under_way
""",
            seconds=120,
        )
    )


def test_what_goes_wrong_later_is_raised_by_the_next_call() -> None:
    job = run_job(
        2,
        HEAD
        + """
class Late:
    # Queued work of which nobody knows yet that a rank was lost.
    def is_over(self):
        return True
    def end(self):
        raise hvd.HorovodInternalError("rank 1 was lost")

def told(call):
    run_ahead.add(Late())
    try:
        call()
    except hvd.HorovodInternalError as error:
        assert "rank 1 was lost" in str(error), error
    else:
        raise AssertionError("nobody was told")
    assert not run_ahead._under_way

network = torch.nn.Linear(2, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters())
waiting = hvd.allreduce_async(torch.ones(2), name="waiting")
told(lambda: hvd.allreduce(torch.ones(2), name="other"))
told(lambda: hvd.synchronize(waiting))
told(lambda: hvd.poll(waiting))
hvd.synchronize(waiting)
told(lambda: optimizer.step())
told(hvd.shutdown)
""",
        seconds=120,
    )
    check(job)


def test_what_ranks_refuse_is_raised_by_whoever_waits() -> None:
    check(
        run_job(
            2,
            HEAD
            + """
handle = hvd.allreduce_async(torch.ones(2 + hvd.rank()), name="a")
try:
    hvd.synchronize(handle)
except hvd.HorovodInternalError as error:
    assert "Mismatched ALLREDUCE tensor shapes" in str(error), error
else:
    raise AssertionError("nobody was told")
assert not run_ahead._under_way
hvd.allreduce(torch.ones(2), name="a")
hvd.shutdown()
""",
            seconds=120,
        )
    )


def test_a_jax_call_of_which_one_request_is_refused_returns_when_the_engine_is_done_with_the_others(tmp_path) -> None:
    """It returned at once, and XLA reused memory that the engine still worked on."""
    check(
        run_job(
            2,
            HEAD
            + f"""
import threading
import jax.numpy as jnp
import farandole.jax

def call():
    arrays = [jnp.ones(3), jnp.ones(5)]
    try:
        return [total.tolist() for total in farandole.jax.allreduce(arrays, name="two", op=hvd.Sum)]
    except Exception as error:
        return str(error)

# The program is compiled now, so that the next call takes no time.
assert call() == [[2.0] * 3, [2.0] * 5]
if hvd.rank() == 0:
    # The call's second request has the same name and is refused at once. Its first one waits for rank 1.
    first = _native.barrier("jax.two.1", 0)
    answers = []
    caller = threading.Thread(target=lambda: answers.append(call()))
    caller.start()
    caller.join(1)
    assert caller.is_alive(), f"the call has returned before its first request was done: {{answers}}"
    open("{tmp_path}/go", "w").close()
    caller.join()
    assert "jax.two" in answers[0], answers
    try:
        first.wait()
    except hvd.HorovodInternalError as error:
        assert "Mismatched" in str(error), error
else:
    wait_for("rank 0", lambda: os.path.exists("{tmp_path}/go"))
    assert "Mismatched" in call()
assert call() == [[2.0] * 3, [2.0] * 5]
hvd.shutdown()
""",
            seconds=120,
        )
    )


def test_gradients_run_ahead_and_end_with_the_interpreter(tmp_path) -> None:
    job = run_job(
        2,
        HEAD
        + f"""
network = torch.nn.Linear(3, 2)
hvd.broadcast_parameters(network.state_dict(), 0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters())
for step in range(5):
    optimizer.zero_grad()
    network(torch.full((1, 3), float(hvd.rank() + step))).sum().backward()
    optimizer.step()
assert hvd.allgather(network.weight.detach()).reshape(2, -1).unique(dim=0).shape[0] == 1
# Nobody waits for the last one. A rank that leaves ends the job, so none leaves before both have asked for it.
hvd.allreduce_async_(torch.ones(2), name="last")
open("{tmp_path}/" + str(hvd.rank()), "w").close()
wait_for("both ranks", lambda: len(os.listdir("{tmp_path}")) == 2)
print("left", flush=True)
""",
        seconds=120,
    )
    check(job)
    assert all(job.lines(rank) == ["left"] for rank in (0, 1)), job.output
