"""Process groups with the backend "farandole" in jobs of their own: under launchers, beside gloo, and in trouble."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import textwrap

import pytest

import jobs

# PyTorch takes seconds to start on a busy machine.
pytestmark = pytest.mark.timeout(300)
DEADLINE_SECONDS = 200

TRAIN = """
import os
import sys
import torch
import torch.distributed as dist
import farandole.torch.distributed

backend, mode = sys.argv[1:]
torch.manual_seed(1)
torch.set_num_threads(1)
dist.init_process_group(backend)
rank, size = dist.get_rank(), dist.get_world_size()
layers = [torch.nn.Linear(8, 300), torch.nn.BatchNorm1d(300), torch.nn.ReLU(), torch.nn.Linear(300, 4)]
network = torch.nn.Sequential(*layers)
if mode == "fsdp":
    from torch.distributed.fsdp import fully_shard
    fully_shard(network[0])
    fully_shard(network)
    parallel = network
else:
    # Small buckets, so that there are several; views of them, as most users have it.
    parallel = torch.nn.parallel.DistributedDataParallel(network, bucket_cap_mb=0.005, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
for step in range(40):
    data = torch.randn(6, 8, generator=torch.Generator().manual_seed(100 * step + rank))
    loss = parallel(data).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses = [None] * size
    dist.all_gather_object(losses, loss.item().hex())
if rank == 0:
    print("losses", *losses, flush=True)
dist.destroy_process_group()
if backend == "gloo":
    # Without the end of the interpreter, in which gloo's threads have aborted a process that was done.
    os._exit(0)
"""

SMALL = """
import torch
import torch.distributed as dist
import farandole.torch.distributed

for _ in range(2):
    dist.init_process_group("farandole")
    tensor = torch.ones(3) * (dist.get_rank() + 1)
    dist.all_reduce(tensor)
    size = dist.get_world_size()
    assert tensor.tolist() == [size * (size + 1) / 2] * 3, tensor
    group = dist.new_group([0])
    dist.barrier()
    rank = dist.get_rank()
    dist.destroy_process_group()
print(f"rank {rank} of {size} is well", flush=True)
"""

SPAWN = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def work(rank, size, url):
    import farandole.torch.distributed
    dist.init_process_group("farandole", init_method=url, rank=rank, world_size=size)
    tensor = torch.full((2,), float(rank))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size * (size - 1) / 2] * 2
    dist.destroy_process_group()
    print(f"rank {rank} of {size} is well", flush=True)

if __name__ == "__main__":
    mp.spawn(work, (2, f"file://{sys.argv[1]}"), 2)
"""


def run(words: list[str], **variables: str) -> tuple[int, str]:
    """Runs a command to its end; its exit code and what it has written."""
    done = subprocess.run(
        words,
        env=jobs.environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout


def torchrun(ranks: int) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def script_of(text: str, folder: pathlib.Path) -> str:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


def losses_of(output: str) -> str:
    [line] = [line for line in output.splitlines() if "losses" in line]
    return line.partition("losses")[2]


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_training_has_the_losses_of_gloo(tmp_path: pathlib.Path, mode: str) -> None:
    script = script_of(TRAIN, tmp_path)
    code, of_gloo = run([*torchrun(2), script, "gloo", mode])
    assert code == 0, of_gloo
    for launcher in (torchrun(2), [jobs.command(), "run", "-np", "2", sys.executable]):
        code, ours = run([*launcher, script, "farandole", mode])
        assert code == 0, ours
        # Sums of two numbers have one result.
        assert losses_of(ours) == losses_of(of_gloo)


@pytest.mark.parametrize("launcher", ["torchrun", "farandole"])
def test_an_ordinary_script_runs_under_each_launcher(tmp_path: pathlib.Path, launcher: str) -> None:
    words = torchrun(3) if launcher == "torchrun" else [jobs.command(), "run", "-np", "3", sys.executable]
    code, output = run([*words, script_of(SMALL, tmp_path)])
    assert code == 0 and all(f"rank {rank} of 3 is well" in output for rank in range(3)), output


def test_processes_without_a_launcher_meet_through_a_file(tmp_path: pathlib.Path) -> None:
    code, output = run([sys.executable, script_of(SPAWN, tmp_path), str(tmp_path / "store")])
    assert code == 0 and all(f"rank {rank} of 2 is well" in output for rank in range(2)), output


@pytest.mark.parametrize("launcher", ["torchrun", "farandole"])
def test_the_backend_is_found_by_its_entry_point(tmp_path: pathlib.Path, launcher: str) -> None:
    installed = tmp_path / "farandole-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: farandole\nVersion: 0\n")
    project = (jobs.PACKAGE / "pyproject.toml").read_text()
    group = '[project.entry-points."torch.distributed.backends"]\n'
    entry = project.partition(group)[2].partition("\n")[0].replace('"', "")
    (installed / "entry_points.txt").write_text(f"[torch.distributed.backends]\n{entry}\n")
    script = script_of(SMALL.replace("import farandole.torch.distributed", ""), tmp_path)
    words = torchrun(2) if launcher == "torchrun" else [jobs.command(), "run", "-np", "2", sys.executable]
    code, output = run([*words, script], PYTHONPATH=f"{jobs.PACKAGE}:{tmp_path}")
    assert code == 0 and "rank 1 of 2 is well" in output, output


PLAIN = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
network = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
network(torch.ones(3, 4)).sum().backward()
total = torch.ones(1)
dist.all_reduce(total)
place = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")]
print("place", *place, "total", total.item(), "store", os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], flush=True)
dist.barrier()
# Without the end of the interpreter, in which gloo's threads have aborted a process that was done.
os._exit(0)
"""


def test_a_script_for_gloo_without_our_import_missed_rank_under_our_launcher(tmp_path: pathlib.Path) -> None:
    words = [jobs.command(), "run", "-np", "2"]
    script = [sys.executable, script_of(PLAIN, tmp_path)]
    # What a launcher around ours has set is of another job, and its agents serve no store of this one.
    outer = {"RANK": "7", "WORLD_SIZE": "8", "MASTER_ADDR": "203.0.113.1", "MASTER_PORT": "1"}
    code, output = run([*words, *script], TORCHELASTIC_USE_AGENT_STORE="True", **outer)
    places = [f"place {rank} 2 {rank} 2 0 total 2.0 store 127.0.0.1" for rank in range(2)]
    assert code == 0 and all(place in output for place in places), output
    port = str(jobs.free_port())
    code, output = run([*words, "-x", f"MASTER_PORT={port}", *script])
    assert code == 0 and output.count(f"store 127.0.0.1 {port}") == 2, output
    code, output = run([*words, "-x", "RANK=1", *script])
    assert code != 0 and "-x RANK: the launcher sets this itself" in output, output


def on_two_hosts(script: str, **variables: str) -> list[tuple[int, str]]:
    """Two ranks that take themselves for ranks of different hosts."""
    port = jobs.free_port()
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **variables}
    ranks = [
        subprocess.Popen(
            [sys.executable, script],
            env=jobs.environment(**common, RANK=str(rank), FARANDOLE_HOST=f"host-{rank}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=DEADLINE_SECONDS)[0] for rank in ranks]
    return [(rank.returncode, output) for rank, output in zip(ranks, outputs)]


def test_ranks_on_several_hosts_need_a_key(tmp_path: pathlib.Path) -> None:
    script = script_of(SMALL, tmp_path)
    for code, output in on_two_hosts(script, HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path)):
        assert code != 0 and "FARANDOLE_KEY: is not set" in output, output
    for rank, (code, output) in enumerate(on_two_hosts(script, FARANDOLE_KEY="5e" * 32)):
        assert code == 0 and f"rank {rank} of 2 is well" in output, output


def test_an_operation_that_takes_too_long_ends_the_job_with_its_cause() -> None:
    job = jobs.run_job(
        2,
        """
        from datetime import timedelta
        import torch
        import torch.distributed as dist
        import farandole.torch.distributed
        from waiting import lapse

        dist.init_process_group("farandole", timeout=timedelta(seconds=60))
        dist.barrier()
        if dist.get_rank() == 0:
            work = dist.all_reduce(torch.ones(1), async_op=True)
            try:
                work.wait(timedelta(seconds=1))
            except farandole.torch.distributed.DistStallError as error:
                print("late:", error, flush=True)
            assert work.is_completed() and not work.is_success() and work.exception() is not None
        else:
            lapse("rank 1, which is late", 2)
            try:
                dist.all_reduce(torch.ones(1))
            except farandole.StallError as error:
                assert isinstance(error, dist.DistBackendError)
                print("late:", error, flush=True)
        """,
        seconds=60,
    )
    for rank in range(2):
        [line] = [line for line in job.lines(rank) if line.startswith("late:")]
        assert "has exceeded its timeout of 1 s" in line, line


def test_abort_ends_what_is_under_way_and_the_group_can_be_made_again() -> None:
    job = jobs.run_job(
        2,
        """
        import torch
        import torch.distributed as dist
        import farandole.torch.distributed

        dist.init_process_group("farandole")
        store = dist.distributed_c10d._get_default_store()
        if dist.get_rank() == 0:
            future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
            dist.group.WORLD.abort()
            try:
                future.wait()
            except Exception as error:
                print("aborted:", "was aborted on rank 0" in str(error), flush=True)
            store.set("aborted", "yes")
        store.wait(["aborted"])
        dist.destroy_process_group()
        dist.init_process_group("farandole")
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        print("again:", tensor.item(), flush=True)
        """,
        seconds=60,
    )
    assert "aborted: True" in job.lines(0), job
    assert "again: 2.0" in job.lines(0) and "again: 2.0" in job.lines(1), job


def test_a_monitored_barrier_names_who_has_not_come() -> None:
    job = jobs.run_job(
        3,
        """
        from datetime import timedelta
        import torch.distributed as dist
        import farandole.torch.distributed

        dist.init_process_group("farandole")
        if dist.get_rank() == 0:
            try:
                dist.monitored_barrier(timeout=timedelta(seconds=1), wait_all_ranks=True)
            except RuntimeError as error:
                print(error, flush=True)
        dist.barrier()
        dist.destroy_process_group()
        """,
        seconds=60,
    )
    assert job.code == 0 and "Ranks 1, 2 failed to pass monitoredBarrier in 1000 ms" in job.output, job
