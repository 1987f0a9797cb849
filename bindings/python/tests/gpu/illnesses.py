"""Training on a GPU that has one illness after the other, each of them reported and checked.

    python bindings/python/tests/gpu/illnesses.py

Starts `farandole run` by itself, with two ranks that may share one GPU, and reads what `farandole report` makes of each
scene in the traces. A GPU computes behind the program's back, so the host's clock alone would blame whatever the
program happens to do when it has to wait. What must hold:

- the first finding is the illness, and where there is none, it is neither the input, nor a rank, nor a phase;
- the wait for the device, where the host does wait, is marked as such, and no part of it is a wait for input;
- what the device takes is booked neither as input nor as lateness where nothing is starved or late;
- a slow loader is no illness while the device still has work ("overlapped"), and the report tells how much of the waits
  lay behind work; a starved device is reported as idle.

The lateness and the evaluation are work for the device, which the host does not wait for where it is given.

`--device pretend` runs the same against a device that is not there (`pretend`), which is how this program is itself
tested. Without a GPU it fails otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any, Optional

WORK_SECONDS = 0.03
"""What the device computes in a step of a rank, besides the network. Ranks that share a device take it in turns."""
READ_SECONDS = 0.08
"""How long a starved rank reads for a step."""
HIDING_SECONDS = 0.1
"""What the device computes behind a step of the scene in which reading costs nothing: longer than that takes."""
LATE_SECONDS = 0.12
"""What the device computes for a late rank in addition."""
EVALUATION_SECONDS = 0.6
"""What the device computes for an evaluation."""
EVALUATED_STEPS = 5
"""After so many steps it comes."""
WARM_UP = 4
"""Steps of each scene that are not looked at: libraries are loaded in the first, and what the device has left of the
scene before is done."""

SCENES: dict[str, Optional[str]] = {
    "healthy": None,
    "starved": "input",
    "overlapped": None,
    "late": "late",
    "evaluation": "sequential",
}
"""What runs, and the cause that must be found first."""

LEAST_PERCENT = 20.0
"""Reading takes more than that of a step, however slow the machine is."""

RUN_SECONDS = 240
"""The job takes no longer unless it hangs."""


def train(kind: str, steps: int) -> None:
    """The program of a rank: all scenes."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    import farandole.torch as hvd

    hvd.init()
    device, compute = _device(kind)

    class Samples(Dataset[tuple[Any, int]]):
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        def __len__(self) -> int:
            return 2 * steps

        def __getitem__(self, index: int) -> tuple[Any, int]:
            time.sleep(self.seconds)
            return torch.full((3, 16, 16), float(index % 5)), index % 2

    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 2),
    ).to(device)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    right = torch.zeros((), device=device)

    def evaluate() -> None:
        model.eval()
        with torch.no_grad():
            right.add_(model(torch.ones(4, 3, 16, 16, device=device)).argmax(1).sum())
            compute(EVALUATION_SECONDS)
        model.train()

    def play(scene: str) -> None:
        late = scene == "late" and hvd.rank() == 1
        evaluates = scene == "evaluation" and hvd.rank() == 0
        reads = scene in ("starved", "overlapped")
        loader = DataLoader(Samples(READ_SECONDS / 2 if reads else 0), batch_size=2)
        for step, (inputs, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
            compute(WORK_SECONDS + (LATE_SECONDS if late else 0))
            loss.backward()
            optimizer.step()
            if scene == "overlapped":
                compute(HIDING_SECONDS)
            if evaluates and step % EVALUATED_STEPS == EVALUATED_STEPS - 1:
                evaluate()

    for scene in SCENES:
        play(scene)
    assert right.item() >= 0
    hvd.shutdown()


def _device(kind: str) -> tuple[Any, Any]:
    """The device of this rank, and what has it compute for some seconds."""
    import torch

    import farandole.torch as hvd

    if kind == "pretend":
        import pretend

        return torch.device("cpu"), pretend.Device().compute
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    matrix = torch.full((4096, 4096), 1e-4, device=device)
    product = torch.empty_like(matrix)

    def multiply(times: int) -> None:
        for _ in range(times):
            torch.mm(matrix, matrix, out=product)

    # Rank 0 measures while the others wait for it, with the device to itself.
    seconds = 0.0
    if hvd.rank() == 0:
        multiply(20)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        multiply(50)
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - begun) / 50
        print(
            f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {1e3 * seconds:.2f} ms a product", flush=True
        )
    seconds = hvd.broadcast_object(seconds, 0)
    return device, lambda wanted: multiply(max(1, round(wanted / seconds)))


def command() -> str:
    """The command `farandole`: as given, beside this interpreter, or on the path."""
    beside = pathlib.Path(sys.executable).with_name("farandole")
    found = os.environ.get("FARANDOLE_COMMAND") or (str(beside) if beside.exists() else shutil.which("farandole"))
    if not found:
        raise SystemExit("there is no command `farandole`: install the wheel, or set FARANDOLE_COMMAND")
    return found


def run(kind: str, ranks: int, steps: int, traces: pathlib.Path) -> None:
    """Runs all scenes in a job, which leaves its traces."""
    own = [sys.executable, str(pathlib.Path(__file__).resolve()), "--rank", "--device", kind, "--steps", str(steps)]
    words = [command(), "run", "-np", str(ranks), "--trace", str(traces), *own]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    job = subprocess.run(words, timeout=RUN_SECONDS, capture_output=True, text=True, env=environment)
    if job.returncode != 0:
        raise SystemExit(f"the job failed ({job.returncode})\n{job.stdout}\n{job.stderr}")
    print(job.stdout, end="", flush=True)


def report(traces: pathlib.Path, scene: str, steps: int) -> dict[str, Any]:
    """What the report says of a scene, but for its first few steps and its last."""
    before = steps * list(SCENES).index(scene)
    words = [
        command(), "report", str(traces), "--json", "--window", f"iterations={before + WARM_UP}..{before + steps - 1}"
    ]
    said: dict[str, Any] = json.loads(
        subprocess.run(words, check=True, timeout=60, capture_output=True, text=True).stdout
    )
    return said


Span = tuple[str, float, float]


def spans(traces: pathlib.Path) -> dict[int, list[Span]]:
    """The phases of each rank, as its timeline shows them: name, beginning and end in microseconds."""
    merged = traces / "merged.json"
    subprocess.run([command(), "timeline", str(traces), "-o", str(merged)], check=True, timeout=60, capture_output=True)
    found: dict[int, list[Span]] = {}
    for event in json.loads(merged.read_text())["traceEvents"]:
        if event["ph"] == "X":
            found.setdefault(event["pid"], []).append((event["name"], event["ts"], event["ts"] + event["dur"]))
    return found


def lost(said: dict[str, Any], *causes: str) -> float:
    """How much was lost to these causes, in percent of the time of all ranks."""
    return sum(loss["percent"] for loss in said["split"]["losses"] if loss["cause"] in causes)


def device_work_us(of_rank: list[Span]) -> float:
    """How long a rank has waited for the work of its device."""
    return sum(end - begin for name, begin, end in of_rank if name == "device work")


def faults_of_scene(scene: str, said: dict[str, Any], tolerance: float) -> list[str]:
    """What the report of a scene has wrong, in words."""
    found: list[str] = []
    first = said["findings"][0] if said["findings"] else {
        "cause": None, "rank": None, "phase": None, "lost_percent": 0.0
    }
    wanted = SCENES[scene]
    if wanted is not None and first["cause"] != wanted:
        found.append(f"the first finding should be {wanted}, and is {first['cause']}")
    elif scene == "late" and first["rank"] != 1:
        found.append(f"rank 1 is late, and rank {first['rank']} is named")
    elif scene == "evaluation" and first["phase"] != "evaluation":
        found.append(f"the phase should be evaluation, and is {first['phase']}")
    of_devices = said.get("devices", {"ranks": []})["ranks"]
    if not of_devices:
        found.append("nothing is said of the devices")
    for of_device in of_devices:
        hidden = 100 * of_device["hidden_input_ns"] / said["ns"]
        if scene == "starved" and of_device["idle_percent"] < LEAST_PERCENT:
            found.append(f"the device of rank {of_device['rank']} is said to idle {of_device['idle_percent']:.1f} %")
        if scene == "overlapped" and hidden < LEAST_PERCENT:
            found.append(f"of rank {of_device['rank']}, {hidden:.1f} % are said to be waits behind work")
    for cause in ("input", "late", "sequential", "checkpoint"):
        if cause != wanted and lost(said, cause) > tolerance:
            found.append(f"{lost(said, cause):.1f} % are booked as {cause}")
    return found


def faults_of_marks(of_ranks: dict[int, list[Span]], ranks: int, steps: int, *, waits: bool = True) -> list[str]:
    """What the marks of waiting for the device have wrong, in words. waits: whether the host does, and not a stream."""
    found: list[str] = []
    least_us = 1e6 * len(SCENES) * (steps - WARM_UP) * WORK_SECONDS / 2
    for rank in range(ranks):
        of_rank = of_ranks.get(rank, [])
        if waits and device_work_us(of_rank) < least_us:
            waited = f"{device_work_us(of_rank) / 1e3:.0f} ms"
            found.append(f"rank {rank} waited {waited} for its device; {least_us / 1e3:.0f} ms were expected")
        waits = [span for span in of_rank if span[0] == "input wait"]
        devices = [span for span in of_rank if span[0] in ("device work", "device copy")]
        if any(begin < wait[2] and wait[1] < end for _, begin, end in devices for wait in waits):
            found.append(f"rank {rank} waits for input and for its device at once")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "pretend"], default="cuda")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=24, help="of each scene")
    parser.add_argument("--tolerance", type=float, default=15.0, help="percent that may be booked as what is not there")
    parser.add_argument("--traces", type=pathlib.Path, help="where traces are left; nowhere by default")
    parser.add_argument("--rank", action="store_true", help="be a rank of the job that this program starts")
    wish = parser.parse_args()
    if wish.rank:
        train(wish.device, wish.steps)
        return
    with tempfile.TemporaryDirectory() as temporary:
        traces = wish.traces or pathlib.Path(temporary)
        run(wish.device, wish.ranks, wish.steps, traces)
        # On a GPU a stream may wait for collectives in the place of the host.
        found = faults_of_marks(spans(traces), wish.ranks, wish.steps, waits=wish.device == "pretend")
        waited = ", ".join(f"{device_work_us(of_rank) / 1e3:.0f} ms" for _, of_rank in sorted(spans(traces).items()))
        print(f"{'FAILED' if found else 'ok'} marks: the ranks waited {waited} for their device's work")
        for fault in found:
            print(f"   {fault}")
        for scene in SCENES:
            said = report(traces, scene, wish.steps)
            wrong = faults_of_scene(scene, said, wish.tolerance)
            found += wrong
            print(f"{'FAILED' if wrong else 'ok'} {scene}: {said['headline']}")
            print(f"   {said['ns'] / 1e9:.1f} s; {_shares(said)}")
            for fault in wrong:
                print(f"   {fault}")
    raise SystemExit(1 if found else 0)


def _shares(said: dict[str, Any]) -> str:
    causes = ("input", "late", "sequential", "agreement", "packing", "transfer", "other")
    idle = ", ".join(f"{of_device['idle_percent']:.1f} %" for of_device in said.get("devices", {"ranks": []})["ranks"])
    return ", ".join(f"{cause} {lost(said, cause):.1f} %" for cause in causes) + f"; devices idle {idle}"


if __name__ == "__main__":
    main()
