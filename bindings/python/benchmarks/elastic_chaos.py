"""An elastic job under random faults of processes, hosts, the network and the launcher.

Hosts are network namespaces with two slots each (`namespaces.py`). The launcher has a host of its own, whose cable
stays in. A script that the launcher runs names the hosts of the moment. Every few seconds a fault follows from the
seed; each ends some seconds later, or never:

- `kill`, `kill together`, `stop`, `stop for ever`: ranks get SIGKILL or SIGSTOP.
- `cut`: a host loses its network. `one way`: packets from one host to another are dropped. `drops`: a host loses a
  share of the packets that it receives.
- `resets`: TCP connections between two hosts are reset, both processes live (`middlebox.py`). `launcher reset`: the
  same between a host and the launcher's.
- `launcher stop`: the launcher gets SIGSTOP, and later SIGCONT.
- `slow disk`: fsync of a checkpoint takes seconds (`slow_sync.c`), and the host of the rank that waits there is cut
  off.
- `hosts`: the script names other hosts, or fewer slots.

Every other rank has its own PID namespace (`apart.py`), unless `--together` is given.

What must hold: a rank completes another step within two minutes after the job can continue. No rank gets a wrong sum
(`elastic_worker.py` checks one in every step). Every sample of every epoch is used once. Every checkpoint that a rank
loads is whole and has the parameters of its step in the history (only `chaos_worker` writes checkpoints). All ranks
that complete a step have the same parameters after it, which are those of a run that has as many ranks in each step
and no faults. The recorded decisions of members come out the same in the state machine (`replay_membership`) and form
one history.

The ranks that no fault concerns can always decide: they are more than those in doubt, which are stopped, cut off or
lossy, or were so a short while ago. Times differ from run to run, so a seed repeats the plan and not the outcome;
after a failure the folder with all logs is left.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple

import namespaces
from elastic_job import (
    PATIENCE,
    WORKER,
    Job,
    check_history,
    end_on_signals,
    farandole_words,
    new_folder,
    one_history,
    state_of,
)
from middlebox import Middlebox

SLOTS = 2
"""Ranks of a host: so that a lost host takes several with it."""

LONGEST_CUT, LONGEST_STOP = 8.0, 8.0
"""Seconds: longer than the silence after which a rank is suspected, and long enough to be evicted."""

LONGEST_RESETS = 3.0
"""Seconds in which every connection of a pair of hosts is reset; more than the silence now and then."""

KINDS = {
    "kill": 4,
    "kill together": 1,
    "stop": 2,
    "stop for ever": 1,
    "cut": 2,
    "one way": 1,
    "drops": 1,
    "resets": 3,
    "launcher reset": 1,
    "launcher stop": 1,
    "slow disk": 1,
    "hosts": 1,
}
"""How often each kind of fault is drawn, beside the others."""

IN_DOUBT = 15.0
"""Seconds after which a process that was stopped or cut off is back in the job, or out of it."""


SLOW = "disk_is_slow"
"""The file that `slow_sync.c` looks for."""

LAUNCHER = 0
"""The host of the launcher."""


class Later(NamedTuple):
    """What is to be done at a time."""

    at: float
    what: str
    act: Callable[[], None]


class Chaos:
    """What happens to a job."""

    def __init__(
        self, job: Job, network: namespaces.Network, dice: random.Random, kinds: dict[str, int]
    ) -> None:
        self.job, self.network, self.dice, self.kinds = job, network, dice, kinds
        self.counts: dict[str, int] = {}
        #: Connections that were reset.
        self.resets = 0
        self._launcher_is_stopped = False
        #: Exists while disks are slow.
        self._slow = job.folder / SLOW
        self._later: list[Later] = []
        self._cut: set[int] = set()
        self._stopped: set[int] = set()
        #: Until when others may not be certain of a process.
        self._doubtful: dict[int, float] = {}
        self._began = time.monotonic()
        self._log = open(job.folder / "events", "w", buffering=1)  # noqa: SIM115 - open until the end

    def say(self, what: str) -> None:
        """Notes an event."""
        self._log.write(f"{time.monotonic() - self._began:8.3f} {time.monotonic_ns()} {what}\n")

    def in_peace(self) -> list[int]:
        """Processes that have the state and to which nothing is happening."""
        running = self.job.running()
        newest = max((notes[-1].step for notes in running.values() if notes), default=0)
        hosts = {pid: self.network.host_of(pid) for pid in running}
        return [
            pid
            for pid, notes in sorted(running.items())
            if notes and notes[-1].step >= newest - 1 and hosts[pid] is not None and hosts[pid] not in self._cut
        ]

    def strike(self) -> None:
        """Draws a fault, which happens if enough ranks are left in peace."""
        kind = self.dice.choices(list(self.kinds), weights=list(self.kinds.values()))[0]
        now = time.monotonic()
        self._doubtful = {pid: until for pid, until in self._doubtful.items() if until > now}
        peaceful = [pid for pid in self.in_peace() if pid not in self._doubtful]
        # This many may be killed, and half as many be in doubt.
        spare = len(peaceful) - len(self._doubtful) - 1
        host = self.dice.randrange(1, len(self.network))
        there = [pid for pid in peaceful if self.network.host_of(pid) == host]
        may_cut = spare >= 2 * len(there) and host not in self._cut
        if kind.startswith("kill") and spare >= (2 if self._launcher_is_stopped else 1):
            count = self.dice.randint(1, spare) if kind == "kill together" and not self._launcher_is_stopped else 1
            killed = self.dice.sample(peaceful, count)
            if self._launcher_is_stopped:
                # No agent's report reaches the members of other hosts.
                self._doubtful.update(dict.fromkeys(killed, now + IN_DOUBT))
            self._kill(killed)
        elif kind.startswith("stop") and spare >= 2:
            self._stop(self.dice.choice(peaceful), for_ever=kind == "stop for ever")
        elif kind == "hosts":
            self._choose_hosts()
        elif kind in ("cut", "one way", "drops", "resets") and may_cut:
            self._doubtful.update(dict.fromkeys(there, now + IN_DOUBT))
            {"cut": self._cut_off, "one way": self._silence, "drops": self._drop, "resets": self._reset}[kind](host)
        elif kind == "launcher reset" and host not in self._cut:
            self._reset_between(host, LAUNCHER)
        elif kind == "slow disk" and not self._slow.exists():
            self._slow_down()
        elif kind == "launcher stop" and not self._launcher_is_stopped and spare >= 2:
            self._stop_launcher()
        else:
            return
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def go_on(self) -> None:
        """Does what is due."""
        self._cut_off_writers()
        now = time.monotonic()
        due, self._later = [one for one in self._later if one.at <= now], [one for one in self._later if one.at > now]
        for one in due:
            self.say(one.what)
            one.act()

    def calm_down(self) -> None:
        """Everything that was cut or stopped goes on, and all hosts are there."""
        for one in self._later:
            self.say(one.what)
            one.act()
        self._later = []
        for pid in self._stopped:
            if state_of(pid) == "T":
                _signal(pid, signal.SIGCONT)
        self._name_hosts([SLOTS] * (len(self.network) - 1))

    def _kill(self, pids: list[int]) -> None:
        self.say(f"kill {pids} on {[self.network.host_of(pid) for pid in pids]}")
        for pid in pids:
            _signal(pid, signal.SIGKILL)

    def _stop(self, pid: int, *, for_ever: bool) -> None:
        self.say(f"stop {pid} on {self.network.host_of(pid)}{' for ever' if for_ever else ''}")
        self._doubtful[pid] = time.monotonic() + IN_DOUBT
        _signal(pid, signal.SIGSTOP)
        if for_ever:
            self._stopped.add(pid)
        else:
            self._plan(LONGEST_STOP, f"continue {pid}", lambda: _signal(pid, signal.SIGCONT))

    def _cut_off(self, host: int) -> None:
        self.say(f"cut {host}")
        self._cut.add(host)
        self.network.cut(host)
        self._plan(LONGEST_CUT, f"mend {host}", lambda: self._mend(host, lambda: self.network.mend(host)))

    def _silence(self, host: int) -> None:
        others = [other for other in range(len(self.network)) if other != host]
        deaf = self.dice.sample(others, self.dice.randint(1, len(others)))
        pairs = [(host, other) if self.dice.random() < 0.5 else (other, host) for other in deaf]
        self.say(f"silence {pairs}")
        self._cut.add(host)
        for sender, receiver in pairs:
            self.network.silence(sender, receiver)

        def speak() -> None:
            for sender, receiver in pairs:
                self.network.speak(sender, receiver)

        self._plan(LONGEST_CUT, f"mend {pairs}", lambda: self._mend(host, speak))

    def _drop(self, host: int) -> None:
        percent = self.dice.choice([5, 20, 50])
        self.say(f"drop {percent} % of what host {host} receives")
        self._cut.add(host)
        self.network.lose(host, percent)
        self._plan(LONGEST_CUT, f"mend {host}", lambda: self._mend(host, lambda: self.network.lose(host, 0)))

    def _reset(self, host: int) -> None:
        self._reset_between(host, self.dice.choice([other for other in range(1, len(self.network)) if other != host]))

    def _reset_between(self, host: int, other: int) -> None:
        self.say(f"reset connections between {host} and {other}")
        self._cut.add(host)
        middlebox = Middlebox(host, other)

        def close() -> None:
            middlebox.close()
            self.resets += len(middlebox.connections)

        self._plan(LONGEST_RESETS, f"no resets between {host} and {other}", lambda: self._mend(host, close))

    def _mend(self, host: int, act: Callable[[], None]) -> None:
        self._cut.discard(host)
        act()

    def _slow_down(self) -> None:
        self.say("slow disk")
        self._slow.touch()
        self._plan(LONGEST_STOP, "fast disk", lambda: self._slow.unlink(missing_ok=True))

    def _cut_off_writers(self) -> None:
        """Cuts off the hosts of ranks that wait for a slow disk, if the others can decide without them."""
        for marker in self._slow.parent.glob(f"{self._slow.name}.*"):
            pid = int(marker.suffix[1:])
            marker.unlink(missing_ok=True)
            host = self.network.host_of(pid)
            now = time.monotonic()
            peaceful = [one for one in self.in_peace() if self._doubtful.get(one, 0) <= now]
            there = [one for one in peaceful if self.network.host_of(one) == host]
            doubtful = sum(until > now for until in self._doubtful.values())
            if host and host not in self._cut and len(peaceful) - doubtful - 1 >= 2 * len(there):
                self._doubtful.update(dict.fromkeys(there, now + IN_DOUBT))
                self._cut_off(host)
                self.counts["cut while writing"] = self.counts.get("cut while writing", 0) + 1

    def _stop_launcher(self) -> None:
        launcher = self.job.process.pid
        self.say("stop the launcher")
        self._launcher_is_stopped = True
        _signal(launcher, signal.SIGSTOP)

        def resume() -> None:
            _signal(launcher, signal.SIGCONT)
            self._launcher_is_stopped = False

        self._plan(LONGEST_STOP, "continue the launcher", resume)

    def _choose_hosts(self) -> None:
        """Other hosts, or fewer slots. The ranks on hosts that are not named any more are asked to end."""
        slots = [self.dice.randint(0, SLOTS) for _ in range(1, len(self.network))]
        slots[self.dice.randrange(len(slots))] = SLOTS
        kept = [pid for pid in self.in_peace() if slots[(self.network.host_of(pid) or 1) - 1] == SLOTS]
        if len(kept) > len(self._doubtful):
            self._name_hosts(slots)

    def _name_hosts(self, slots: list[int]) -> None:
        named = [f"{namespaces.name(host)}:{count}\n" for host, count in enumerate(slots, 1) if count > 0]
        self.say(f"hosts {slots}")
        new = self.job.folder / "discovery.new"
        new.write_text("".join(named))
        new.rename(self.job.folder / "discovery")

    def _plan(self, longest: float, what: str, act: Callable[[], None]) -> None:
        self._later.append(Later(time.monotonic() + self.dice.uniform(0.05, longest), what, act))


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def start(args: argparse.Namespace, network: namespaces.Network) -> Job:
    """Half of the ranks at first; the others are there soon."""
    folder = new_folder()
    hosts = len(network) - 1
    named = [f"{namespaces.name(host)}:{SLOTS}\n" for host in range(1, hosts + 1)]
    (folder / "discovery").write_text("".join(named))
    flags = ["-np", str(hosts), "--min-np", "1", "--max-np", str(hosts * SLOTS)]
    flags += ["--host-discovery-script", f"cat {folder}/discovery", "--blacklist-cooldown-range", "0", "1"]
    flags += ["--heartbeat-timeout", str(args.silence), "--start-timeout", "20", "--grace", "2"]
    # A rank that was cut off, and whose peers have all ended when it is back, ends after this time.
    flags += ["--elastic-timeout", "40"]
    environment = dict(os.environ, PATH=network.path(), FARANDOLE_MEMBERSHIP_LOG=str(folder / "decisions"))
    environment["FARANDOLE_TRACE_TROUBLE"] = "0"
    shim = folder / "slow_sync.so"
    source = WORKER.with_name("slow_sync.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(shim), str(source), "-ldl"], check=True)
    flags += ["-x", f"LD_PRELOAD={shim}", "-x", f"SLOW_SYNC={folder / SLOW}"]
    words = [*network.words_on(LAUNCHER), *farandole_words(flags, args.worker, folder, is_apart=not args.together)]
    return Job("chaos", words, folder, environment)


def watch(job: Job, chaos: Chaos, seconds: float) -> None:
    """Lets things happen for so long, and sees that the job goes on."""
    newest, moved = 0, time.monotonic()
    end = time.monotonic() + seconds
    strike_at = time.monotonic() + 1
    while time.monotonic() < end:
        chaos.go_on()
        steps = [notes[-1].step for notes in job.running().values() if notes]
        if max(steps, default=0) > newest:
            newest, moved = max(steps), time.monotonic()
        job.check(moved + PATIENCE, f"came to step {newest}")
        if time.monotonic() >= strike_at:
            chaos.strike()
            strike_at = time.monotonic() + chaos.dice.choice([0.02, 0.3, 1.0, 2.0, 4.0, 6.0])
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hosts", type=int, default=4, help="each has two slots")
    parser.add_argument("--silence", type=float, default=2.0, help="--heartbeat-timeout, in seconds")
    parser.add_argument("--worker", default="torch", help="torch, or the path of a program")
    parser.add_argument("--replay", help="the program replay_membership")
    parser.add_argument("--kinds", default=",".join(KINDS), help="faults to draw from")
    parser.add_argument("--together", action="store_true", help="all ranks have one PID namespace")
    parser.add_argument("--keep", action="store_true", help="keep the folder of a job that passed")
    args = parser.parse_args()
    namespaces.enter()
    end_on_signals()
    place = new_folder()
    network = namespaces.Network(args.hosts + 1, place)
    job = start(args, network)
    keep = True
    try:
        job.wait_for_size(args.hosts * SLOTS)
        kinds = {kind: KINDS[kind] for kind in args.kinds.split(",")}
        chaos = Chaos(job, network, random.Random(args.seed), kinds)
        watch(job, chaos, 60 * args.minutes)
        chaos.calm_down()
        chaos.say("calm")
        job.wait_for_size(args.hosts * SLOTS)
        job.stop()
        report(job, chaos, args)
        keep = args.keep
    finally:
        job.end(keep=keep)
        shutil.rmtree(place, ignore_errors=True)


def check_checkpoints(job: Job) -> str:
    """Compares every checkpoint that was loaded with the history; ends everything if one differs."""
    history = {note.step: note.checksum for note in one_history(job)}
    lines = [line for path in job.folder.glob("*.loaded") for line in path.read_text().splitlines()]
    for step, checksum in (map(int, line.split()) for line in lines):
        if history.get(step) != checksum:
            job.fail(f"a checkpoint of step {step} has the checksum {checksum}, and the history {history.get(step)}")
    return f"{len(lines)} checkpoints were loaded, all whole and of this history"


def report(job: Job, chaos: Chaos, args: argparse.Namespace) -> None:
    """Says what was done, and checks what can be checked afterwards."""
    compared = check_history(job, args.worker)
    last = max(notes[-1].step for notes in job.notes.values() if notes)
    twice = max(note.twice for notes in job.notes.values() for note in notes)
    happened = ", ".join(f"{count} × {kind}" for kind, count in sorted(chaos.counts.items()))
    print(f"{happened} ({chaos.resets} connections reset); {len(job.notes)} processes made {last} steps; {compared}")
    print(check_checkpoints(job))
    print(f"every sample of every epoch was used once, but {twice} at ends of epochs, for ranks that had just joined")
    if args.replay:
        words = [args.replay, str(job.folder / "decisions")]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            job.fail(done.stderr.strip())
        print(done.stdout.strip())


if __name__ == "__main__":
    main()
