"""How long a job stands still when it loses a rank: farandole beside torchrun and torchft, faults of several kinds.

A job of N ranks trains (`elastic_worker.py`, or `chaos_worker` in Rust, which notes the same). In each round one rank
is lost, and the time until all others have completed a step without it is taken; under torchrun, until all ranks have
completed one after they were started again. torchft's survivors go on, as farandole's do (`torchft_job.py`). Then the
round waits until the job has its size again. Jobs of the contestants take turns. Faults:

- `kill`: SIGKILL; all ranks on this host.
- `stop`: SIGSTOP; all ranks on this host.
- `cut`: each rank is on a host of its own, a network namespace, whose cable is taken out (`namespaces.py`). Of two
  ranks the first goes on, whichever was cut off.

Checked, for farandole: all processes agree on the parameters after every step, no step is lost, and a run that has as
many ranks in each step and no faults gives the same bits. The torch worker counts samples, too; it ends if one is lost.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple, Optional

import namespaces
from elastic_job import PATIENCE, WORKER, Job, Note, check_history, end_on_signals, farandole_words, new_folder

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}

OTHERS = {"torchrun": "torch.distributed.run", "torchft": "torchft", "horovod": "horovod.common.elastic"}
"""Others that have elastic jobs, and a module that they bring along. Horovod has no worker here."""


class Contest(NamedTuple):
    """Who is measured with what."""

    contestant: str
    worker: str
    ranks: int
    fault: str


class Round(NamedTuple):
    """What one loss has cost."""

    still_s: float
    whole_s: float
    repeated: int


def start(contest: Contest, silence: float, network: Optional[namespaces.Network]) -> Job:
    """A job of a contestant."""
    folder, ranks = new_folder(), str(contest.ranks)
    environment = dict(os.environ, FARANDOLE_TRACE_TROUBLE="0")
    if contest.contestant == "torchrun":
        words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks, "--max-restarts", "10000"]
        words += ["--monitor-interval", "0.1", str(WORKER), "torchrun", str(folder)]
        return Job("torchrun", words, folder, environment)
    if contest.contestant == "torchft":
        words = [sys.executable, str(WORKER.with_name("torchft_job.py")), ranks, str(folder)]
        return Job("torchft", words, folder, environment)
    flags = ["-np", ranks, "--min-np", "1", "--max-np", ranks, "--heartbeat-timeout", str(silence)]
    flags += ["--blacklist-cooldown-range", "0", "0"]
    if contest.fault != "cut":
        return Job("farandole", farandole_words(flags, contest.worker, folder), folder, environment)
    assert network is not None, "invariant: cuts are made in a network"
    # The launcher has a host of its own, which is never cut.
    hosts = ",".join(f"{namespaces.name(host)}:1" for host in range(1, contest.ranks + 1))
    words = [*network.words_on(0), *farandole_words([*flags, "-H", hosts], contest.worker, folder)]
    return Job("farandole", words, folder, dict(environment, PATH=network.path()))


def lose_one(job: Job, contest: Contest, network: Optional[namespaces.Network], dice: random.Random) -> Round:
    """Has one rank lost, and waits until the job goes on and has its size again."""
    job.wait_for_size(contest.ranks)
    before = sorted(job.running())
    victim = dice.choice(before)
    survivors = [pid for pid in before if pid != victim]
    host = network.host_of(victim) if network is not None and contest.fault == "cut" else None
    begun_ns = time.monotonic_ns()
    if network is not None and host is not None:
        network.cut(host)
        if contest.ranks == 2:
            survivors = []
    else:
        os.kill(victim, SIGNALS[contest.fault])
    first = went_on(job, contest, before, survivors, begun_ns)
    if network is not None and host is not None:
        network.mend(host)
    if contest.fault == "stop":
        # The launcher may have done so already.
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    job.wait_for_size(contest.ranks)
    whole_s = (time.monotonic_ns() - begun_ns) / 1e9
    repeated = max(note.tries - 1 for note in first)
    return Round((max(note.at_ns for note in first) - begun_ns) / 1e9, whole_s, repeated)


def went_on(job: Job, contest: Contest, before: list[int], survivors: list[int], begun_ns: int) -> list[Note]:
    """The first step of each rank in the changed job. Without `survivors` one of those before is enough."""
    deadline = time.monotonic() + PATIENCE
    while True:
        notes = job.running()
        if contest.contestant == "torchrun":
            found = [of_one[0] for pid, of_one in notes.items() if pid not in before and of_one]
            is_complete = len(found) == contest.ranks
        else:
            joined = [of_one[0].at_ns for pid, of_one in notes.items() if pid not in before and of_one]
            whole_ns = min(joined, default=None)
            steps = [notes.get(pid, []) for pid in survivors or before]
            changed = [first_after(of_one, begun_ns, whole_ns, contest.ranks) for of_one in steps]
            found = [note for note in changed if note is not None]
            is_complete = len(found) == max(1, len(survivors))
        if is_complete:
            return found
        job.check(deadline, "has lost a rank")
        time.sleep(0.002)


def first_after(notes: list[Note], begun_ns: int, whole_ns: Optional[int], ranks: int) -> Optional[Note]:
    """The first step of a survivor without the lost rank: with fewer ranks, or after another one has replaced it."""
    latest: Optional[Note] = None
    for note in reversed(notes):
        if note.at_ns <= begun_ns:
            break
        if note.size < ranks or whole_ns is not None and note.at_ns >= whole_ns:
            latest = note
    return latest


def table(rows: list[tuple[Contest, list[Round]]]) -> Iterator[str]:
    """The figures, in seconds."""
    yield "| job | ranks | fault | rounds | median | p90 | max | whole again, median | steps repeated, most |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for contest, rounds in rows:
        still = sorted(one.still_s for one in rounds)
        p90 = still[min(len(still) - 1, int(0.9 * len(still)))]
        whole = statistics.median(one.whole_s for one in rounds)
        figures = " | ".join(f"{seconds:.3f}" for seconds in (statistics.median(still), p90, still[-1], whole))
        repeated = max(one.repeated for one in rounds)
        # torchrun begins anew, and a worker that counts no tries does not say.
        shown = "all" if contest.contestant == "torchrun" else str(repeated) if repeated >= 0 else "-"
        is_ours = contest.contestant == "farandole"
        name = f"farandole, {worker_name(contest.worker)}" if is_ours else contest.contestant
        yield f"| {name} | {contest.ranks} | {contest.fault} | {len(rounds)} | {figures} | {shown} |"


def worker_name(worker: str) -> str:
    """What a worker is called in the table."""
    return "torch" if worker == "torch" else "Rust"


def contests(args: argparse.Namespace, contestants: list[str]) -> Iterator[Contest]:
    """In the order in which they are run: contestants take turns."""
    workers = ["torch" if worker == "torch" else args.rust_worker for worker in args.workers.split(",")]
    for ranks in map(int, args.ranks.split(",")):
        for fault in args.faults.split(","):
            for contestant in contestants:
                if contestant == "farandole":
                    yield from (Contest(contestant, worker, ranks, fault) for worker in workers if worker)
                elif fault == "kill" or fault == "stop" and contestant == "torchft":
                    # torchrun notices nothing else.
                    yield Contest(contestant, "torch", ranks, fault)


def those_present(wanted: list[str]) -> list[str]:
    """The contestants that can be measured; others are named, and not left out silently."""
    present = [contestant for contestant in wanted if contestant not in OTHERS]
    for peer in (contestant for contestant in OTHERS if contestant in wanted):
        words = [sys.executable, "-c", f"import {OTHERS[peer]}"]
        tried = subprocess.run(words, capture_output=True, text=True, check=False)
        if tried.returncode == 0 and peer != "horovod":
            present.append(peer)
        else:
            why = tried.stderr.strip().splitlines()[-1:] or ["it is installed, and this benchmark has no worker for it"]
            print(f"{peer} is not measured: {why[0]}", flush=True)
    return present


def measure(
    contest: Contest, rounds: int, silence: float, network: Optional[namespaces.Network], dice: random.Random
) -> Iterator[Round]:
    """The rounds of one job. Another contestant's job may stay stuck: that is said, and the others have their turn."""
    job, is_good = start(contest, silence, network), False
    try:
        for number in range(1, rounds + 1):
            try:
                yield lose_one(job, contest, network, dice)
            except SystemExit as error:
                if contest.contestant == "farandole":
                    raise
                print(f"round {number} of {rounds}: {str(error).splitlines()[-1]}", flush=True)
                return
        if contest.contestant == "farandole":
            job.stop()
            print(check_history(job, contest.worker), flush=True)
        is_good = True
    finally:
        job.end(keep=not is_good)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="2,4,8", help="sizes of jobs")
    parser.add_argument("--faults", default="kill,stop,cut", help="kill, stop, cut")
    parser.add_argument("--only", default="farandole,torchrun,torchft,horovod", help="contestants")
    parser.add_argument("--workers", default="torch,rust", help="of farandole's jobs: torch, rust")
    parser.add_argument("--rust-worker", help="the program `chaos_worker`")
    parser.add_argument("--rounds", type=int, default=50, help="losses of farandole's jobs; others get a fifth")
    parser.add_argument("--silence", type=float, default=0.5, help="--heartbeat-timeout, in seconds")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    network = None
    if "cut" in args.faults.split(","):
        namespaces.enter()
        network = namespaces.Network(1 + max(map(int, args.ranks.split(","))), new_folder())
    end_on_signals()
    dice, rows = random.Random(args.seed), []
    for contest in contests(args, those_present(args.only.split(","))):
        rounds = args.rounds if contest.contestant == "farandole" else max(1, args.rounds // 5)
        measured = []
        for one in measure(contest, rounds, args.silence, network, dice):
            measured.append(one)
            # A run takes hours: what was measured is seen as it comes, and is not lost if the run is ended.
            print(f"{contest.ranks} ranks, {contest.fault}, round {len(measured)} of {rounds}: {one.still_s:.3f} s, "
                  f"whole after {one.whole_s:.1f} s", file=sys.stderr, flush=True)
        if measured:
            rows.append((contest, measured))
            print(list(table(rows[-1:]))[-1], flush=True)
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
