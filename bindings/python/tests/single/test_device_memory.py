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
import os, time
os.environ["{STAND_IN}"] = "1"
os.environ.setdefault("HOROVOD_ENABLE_ASYNC_COMPLETION", "auto")
import torch
import farandole.torch as hvd
from farandole import _native
from farandole.torch import device_memory, run_ahead, staging

hvd.init()
"""
"""Scripts begin with this."""

AHEAD = """
# A stream of its own: nothing is in it, so that nobody waits on the host.
staging.current_place = device_memory.current_place = lambda device: (0, 1)
"""


def check(job) -> None:
    assert job.code == 0, f"{job.output}\n{job.errors}"


@pytest.mark.parametrize(
    "files",
    [
        ("test_ops_allreduce.py", "test_ops_moves.py", "test_ops_errors.py", "test_ops_gradients.py"),
        ("test_distributed.py", "test_ddp_hook.py"),
        ("test_optimizer_equality.py", "test_optimizer_misuse.py", "test_functions.py", "test_sync_batch_norm.py"),
        ("../jax/test_ops_reduce.py", "../jax/test_ops_moves.py"),
    ],
)
def test_what_works_in_host_memory_works_in_device_memory(files) -> None:
    words = [command(), "run", "-np", "2", sys.executable, "-m", "pytest", "-q", "--exitfirst"]
    words += ["-p", "no:cacheprovider", *(str(PARALLEL / file) for file in files)]
    variables = {STAND_IN: "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    variables["HOROVOD_ENABLE_ASYNC_COMPLETION"] = "auto"
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
assert kinds == [(torch.bfloat16, 8), (torch.float32, 8)], kinds
hvd.shutdown()
""",
            seconds=120,
        )
    )


@pytest.mark.alone
def test_the_host_runs_ahead_of_what_repeats() -> None:
    check(
        run_job(
            2,
            HEAD
            + AHEAD
            + """
def seconds(call):
    begun = time.monotonic()
    call()
    return time.monotonic() - begun

tensor = torch.ones(3)

def reduce(late, name):
    # Rank 1 comes late; rank 0 has to wait for it, or not.
    hvd.barrier()
    if hvd.rank() == 1 and late:
        time.sleep(late)
    handle = hvd.allreduce_async_(tensor, name=name, op=hvd.Max)
    return seconds(lambda: hvd.synchronize(handle)), handle

waited, _ = reduce(0.5, "a")
assert hvd.rank() == 1 or waited > 0.3, waited
waited, handle = reduce(1.0, "a")
assert waited < 0.5, waited
assert hvd.rank() == 1 or len(run_ahead._under_way) == 1
# The next one of that name waits for it.
waited = seconds(lambda: hvd.allreduce_async_(tensor, name="a", op=hvd.Max))
assert hvd.rank() == 1 or waited > 0.3, waited
# Without a name, or on request, it is waited for.
waited, _ = reduce(0.5, None)
assert hvd.rank() == 1 or waited > 0.3, waited
reduce(0, "b")
hvd.barrier()
if hvd.rank() == 1:
    time.sleep(0.5)
handle = hvd.allreduce_async_(tensor, name="b", op=hvd.Max)
assert seconds(lambda: hvd.synchronize(handle, block=True)) > 0.3 or hvd.rank() == 1
hvd.shutdown()
assert not run_ahead._under_way
""",
            seconds=120,
        )
    )


@pytest.mark.alone
@pytest.mark.parametrize("setting", ["0", "1"])
def test_the_setting_says_whether_the_host_waits(setting: str) -> None:
    check(
        run_job(
            2,
            f'import os; os.environ["HOROVOD_ENABLE_ASYNC_COMPLETION"] = "{setting}"\n'
            + HEAD
            + AHEAD
            + f"""
for name in ("a", "a", None):
    hvd.barrier()
    if hvd.rank() == 1:
        time.sleep(0.4)
    handle = hvd.allreduce_async(torch.ones(3), name=name)
    begun = time.monotonic()
    hvd.synchronize(handle)
    waited = time.monotonic() - begun > 0.2
    assert hvd.rank() == 1 or waited == ({setting} == 0), (name, waited)
hvd.shutdown()
""",
            seconds=120,
        )
    )


def test_what_goes_wrong_later_is_raised_by_the_next_call() -> None:
    check(
        run_job(
            2,
            HEAD
            + AHEAD
            + """
def refused(call):
    try:
        call()
    except hvd.HorovodInternalError as error:
        assert "Mismatched ALLREDUCE tensor shapes" in str(error), error
    else:
        raise AssertionError("nobody was told")

calls = {
    "collective": lambda: hvd.allreduce(torch.ones(2), name="other"),
    "synchronize": lambda: hvd.synchronize(waiting),
    "poll": lambda: hvd.poll(waiting),
    "step": lambda: optimizer.step(),
    "shutdown": hvd.shutdown,
}
network = torch.nn.Linear(2, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters())
for number, (kind, call) in enumerate(calls.items()):
    name = f"n{number}"
    hvd.allreduce(torch.ones(2), name=name)
    waiting = hvd.allreduce_async(torch.ones(2), name=f"waiting.{number}")
    hvd.barrier()
    if hvd.rank() == 1:
        time.sleep(0.3)
        refused(lambda: hvd.synchronize(hvd.allreduce_async(torch.ones(3), name=name), block=True))
        hvd.barrier()
        if kind == "shutdown":
            hvd.shutdown()
    else:
        hvd.synchronize(hvd.allreduce_async(torch.ones(2), name=name))
        hvd.barrier()
        refused(call)
    if kind != "shutdown":
        hvd.synchronize(waiting)
        hvd.barrier()
assert not hvd.is_initialized()
""",
            seconds=120,
        )
    )


@pytest.mark.alone
def test_gradients_run_ahead_and_end_with_the_interpreter() -> None:
    job = run_job(
        2,
        HEAD
        + AHEAD
        + """
network = torch.nn.Linear(3, 2)
hvd.broadcast_parameters(network.state_dict(), 0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters())
for step in range(5):
    optimizer.zero_grad()
    if step > 2 and hvd.rank() == 1:
        time.sleep(0.6)
    network(torch.full((1, 3), float(hvd.rank() + step))).sum().backward()
    begun = time.monotonic()
    optimizer.step()
    if step > 2:
        assert time.monotonic() - begun < 0.3
print("left", flush=True)
""",
        seconds=120,
    )
    check(job)
    assert all(job.lines(rank) == ["left"] for rank in (0, 1)), job.output
