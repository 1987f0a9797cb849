"""How long a job stands still when it loses a rank: farandole beside torchrun, faults of several kinds.

A job of N ranks trains on this host (`elastic_worker.py`). In each round one rank gets a signal, and the time until all
survivors have completed a step without it is taken; under torchrun, until all ranks have completed one after they were
started again. Then the round waits until the job has its size again. Jobs of the contestants take turns.

Checked on the way, for farandole: survivors lose no step and make none twice, and after every step all ranks have the
same parameters.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple, Optional

WORKER = pathlib.Path(__file__).with_name("elastic_worker.py")

PATIENCE = 90.0
"""Seconds in which a job must have its size, or go on; longer is a hang."""

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Note(NamedTuple):
    """A step that a process has completed."""

    at_ns: int
    step: int
    size: int
    checksum: int


class Job:
    """A job under way, as its processes note what they do."""

    def __init__(self, contestant: str, ranks: int, silence: float) -> None:
        self.contestant, self.ranks = contestant, ranks
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="elastic-bench-"))
        words = [sys.executable, str(WORKER), contestant, str(self.folder)]
        environment = dict(os.environ, FARANDOLE_HEARTBEAT_TIMEOUT=str(silence))
        if contestant == "farandole":
            command = os.environ.get("FARANDOLE_COMMAND", "farandole")
            head = [command, "run", "-np", str(ranks), "--min-np", "1", "--max-np", str(ranks)]
            head += ["--blacklist-cooldown-range", "0", "0"]
        else:
            head = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
            head += ["--max-restarts", "10000", "--monitor-interval", "0.1"]
            words = words[1:]
        self._log = open(self.folder / "output", "wb")  # noqa: SIM115 - open until the end
        self._process = subprocess.Popen(
            head + words, stdout=self._log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )

    def notes(self) -> dict[int, list[Note]]:
        """What the processes that are alive have noted, by process."""
        found = {}
        for path in self.folder.glob("*.steps"):
            pid = int(path.stem)
            if is_running(pid):
                lines = path.read_text().splitlines()
                found[pid] = [Note(*map(int, line.split())) for line in lines if len(line.split()) == 4]
        return found

    def wait_for_size(self) -> dict[int, list[Note]]:
        """Returns when all ranks train together."""
        deadline = time.monotonic() + PATIENCE
        while True:
            notes = self.notes()
            last = [of_one[-1] for of_one in notes.values() if of_one]
            if len(last) == self.ranks and all(note.size == self.ranks for note in last):
                return notes
            self.check(deadline, f"has {len(last)} of {self.ranks} ranks")
            time.sleep(0.02)

    def check(self, deadline: float, what: str) -> None:
        """Ends the benchmark if the job has ended, or takes too long."""
        if self._process.poll() is not None or time.monotonic() > deadline:
            tail = (self.folder / "output").read_text(errors="replace")[-3000:]
            raise SystemExit(f"{self.contestant}, {self.ranks} ranks: the job {what} and does not go on\n{tail}")

    def end(self) -> None:
        """Kills everything that belongs to it."""
        for path in self.folder.glob("*.steps"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.stem), signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def is_running(pid: int) -> bool:
    """Whether a process runs: one that is stopped, or dead and not yet reaped, does not."""
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZXTt"


class Round(NamedTuple):
    """What one loss has cost."""

    still_s: float
    whole_s: float


def lose_one(job: Job, fault: str, dice: random.Random) -> Round:
    """Has one rank lost, and waits until the job goes on and has its size again."""
    before = job.wait_for_size()
    victim = dice.choice(sorted(before))
    survivors = sorted(pid for pid in before if pid != victim)
    begun_ns = time.monotonic_ns()
    os.kill(victim, SIGNALS[fault])
    went_on_ns = went_on(job, survivors, begun_ns)
    if fault == "stop":
        # The launcher may have done so already.
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    after = job.wait_for_size()
    whole_s = (time.monotonic_ns() - begun_ns) / 1e9
    if job.contestant == "farandole":
        check_steps(after, survivors)
    return Round((went_on_ns - begun_ns) / 1e9, whole_s)


def went_on(job: Job, survivors: list[int], begun_ns: int) -> int:
    """When the last rank had completed a step in the changed job."""
    deadline = time.monotonic() + PATIENCE
    while True:
        notes = job.notes()
        if job.contestant == "farandole":
            first = [first_after(notes.get(pid, []), begun_ns, job.ranks) for pid in survivors]
        else:
            started = [of_one for pid, of_one in notes.items() if pid not in survivors]
            first = [of_one[0].at_ns if of_one else None for of_one in started]
            first += [None] * (job.ranks - len(first))
        if first and all(at_ns is not None for at_ns in first):
            return max(at_ns for at_ns in first if at_ns is not None)
        job.check(deadline, "has lost a rank")
        time.sleep(0.002)


def first_after(notes: list[Note], begun_ns: int, ranks: int) -> Optional[int]:
    """When a survivor had completed its first step without the lost rank."""
    for note in notes:
        if note.at_ns > begun_ns and note.size != ranks:
            return note.at_ns
    return None


def check_steps(notes: dict[int, list[Note]], survivors: list[int]) -> None:
    """Survivors have made all steps, each once, and agree on what came of them."""
    checksums: dict[int, int] = {}
    for pid in notes:
        steps = [note.step for note in notes[pid]]
        if pid in survivors and steps != list(range(steps[0], steps[0] + len(steps))):
            odd = next(step for step, due in zip(steps, range(steps[0], steps[-1] + 1)) if step != due)
            raise SystemExit(f"process {pid} came to step {odd} out of turn")
        for note in notes[pid]:
            if checksums.setdefault(note.step, note.checksum) != note.checksum:
                raise SystemExit(f"after step {note.step}, process {pid} has other parameters than others")


def table(rows: list[tuple[str, int, str, list[Round]]]) -> Iterator[str]:
    """The figures, in seconds."""
    yield "| job | ranks | fault | rounds | median | p90 | max | whole again, median |"
    yield "|---|---|---|---|---|---|---|---|"
    for contestant, ranks, fault, rounds in rows:
        still = sorted(one.still_s for one in rounds)
        p90 = still[min(len(still) - 1, int(0.9 * len(still)))]
        whole = statistics.median(one.whole_s for one in rounds)
        figures = " | ".join(f"{seconds:.3f}" for seconds in (statistics.median(still), p90, still[-1], whole))
        yield f"| {contestant} | {ranks} | {fault} | {len(rounds)} | {figures} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="2,4,8", help="sizes of jobs")
    parser.add_argument("--faults", default="kill,stop", help="kill, stop")
    parser.add_argument("--only", default="farandole,torchrun", help="contestants")
    parser.add_argument("--rounds", type=int, default=50, help="losses of farandole's jobs; torchrun gets a fifth")
    parser.add_argument("--silence", type=float, default=0.5, help="FARANDOLE_HEARTBEAT_TIMEOUT, in seconds")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    dice, rows = random.Random(args.seed), []
    for ranks in map(int, args.ranks.split(",")):
        for fault in args.faults.split(","):
            for contestant in args.only.split(","):
                if contestant == "torchrun" and fault == "stop":
                    continue  # It notices nothing.
                rounds = args.rounds if contestant == "farandole" else max(1, args.rounds // 5)
                job = Job(contestant, ranks, args.silence)
                try:
                    seen = [lose_one(job, fault, dice) for _ in range(rounds)]
                finally:
                    job.end()
                rows.append((contestant, ranks, fault, seen))
                print(list(table(rows[-1:]))[-1], flush=True)
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
