"""An elastic job to which everything happens at random: ranks killed and stopped, hosts cut off and back, joins.

Hosts are network namespaces with two slots each (`namespaces.py`); the launcher has a host of its own, which is not cut
off as a whole. A script that the launcher asks names the hosts of the moment. Every few seconds something happens, by
seed; everything that is cut or stopped goes on some seconds later, or never.

What must hold: somebody always completes another step within a minute after things could go on. No rank gets a wrong
sum (`elastic_worker.py` checks one in every step). Every sample of every epoch is used once. All ranks that complete a
step have the same parameters after it, and the same as a run that has as many ranks in each step and no faults.
Members' recorded decisions come out the same in the state machine (`replay_membership`), and are one history.

Those who are left in peace can always decide: they are more than those who were stopped or cut off a short while ago,
whose loss is not certain to them. (Of two members whose hosts differ, the second does not go on without the first if
that one was silent before it was killed: it might have gone on by itself. Such a job ends after `--elastic-timeout`.)
The times differ from run to run, so a seed repeats the plan and not the outcome; the folder that is left after a
failure has all logs.
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
from elastic_job import PATIENCE, Job, check_history, end_on_signals, farandole_words, new_folder, state_of

SLOTS = 2
"""Ranks of a host: so that a lost host takes several with it."""

LONGEST_CUT, LONGEST_STOP = 8.0, 8.0
"""Seconds: longer than the silence after which somebody is lost, and long enough to be evicted."""

IN_DOUBT = 15.0
"""Seconds after which somebody who was stopped or cut off is back in the job, or out of it."""


class Later(NamedTuple):
    """What is to be done at a time."""

    at: float
    what: str
    act: Callable[[], None]


class Chaos:
    """What happens to a job."""

    def __init__(self, job: Job, network: namespaces.Network, dice: random.Random) -> None:
        self.job, self.network, self.dice = job, network, dice
        self.counts: dict[str, int] = {}
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
        """Something happens, if enough ranks are left in peace."""
        kinds = ["kill"] * 4 + ["kill together", "stop", "stop", "stop for ever", "cut", "cut", "one way", "hosts"]
        kind = self.dice.choice(kinds)
        now = time.monotonic()
        self._doubtful = {pid: until for pid, until in self._doubtful.items() if until > now}
        peaceful = [pid for pid in self.in_peace() if pid not in self._doubtful]
        # So many may be killed, and half as many be in doubt.
        spare = len(peaceful) - len(self._doubtful) - 1
        host = self.dice.randrange(1, len(self.network))
        there = [pid for pid in peaceful if self.network.host_of(pid) == host]
        if kind.startswith("kill") and spare >= 1:
            count = self.dice.randint(1, spare) if kind == "kill together" else 1
            self._kill(self.dice.sample(peaceful, count))
        elif kind.startswith("stop") and spare >= 2:
            self._stop(self.dice.choice(peaceful), for_ever=kind == "stop for ever")
        elif kind == "hosts":
            self._choose_hosts()
        elif kind in ("cut", "one way") and spare >= 2 * len(there) and host not in self._cut:
            self._doubtful.update(dict.fromkeys(there, now + IN_DOUBT))
            self._cut_off(host, one_way=kind == "one way")
        else:
            return
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def go_on(self) -> None:
        """Does what is due."""
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

    def _cut_off(self, host: int, *, one_way: bool) -> None:
        self._cut.add(host)
        if not one_way:
            self.say(f"cut {host}")
            self.network.cut(host)
            self._plan(LONGEST_CUT, f"mend {host}", lambda: self._mend(host, []))
            return
        others = [other for other in range(len(self.network)) if other != host]
        deaf = self.dice.sample(others, self.dice.randint(1, len(others)))
        pairs = [(host, other) if self.dice.random() < 0.5 else (other, host) for other in deaf]
        self.say(f"silence {pairs}")
        for sender, receiver in pairs:
            self.network.silence(sender, receiver)
        self._plan(LONGEST_CUT, f"mend {pairs}", lambda: self._mend(host, pairs))

    def _mend(self, host: int, pairs: list[tuple[int, int]]) -> None:
        self._cut.discard(host)
        if not pairs:
            self.network.mend(host)
        for sender, receiver in pairs:
            self.network.speak(sender, receiver)

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
    # Somebody who was cut off, and whose fellows are all gone when it is back, ends after this time.
    flags += ["--elastic-timeout", "40"]
    environment = dict(os.environ, PATH=network.path(), FARANDOLE_MEMBERSHIP_LOG=str(folder / "decisions"))
    environment["FARANDOLE_TRACE_TROUBLE"] = "0"
    words = [*network.words_on(0), *farandole_words(flags, args.worker, folder)]
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
    parser.add_argument("--keep", action="store_true", help="keep the folder of a job that went well, too")
    args = parser.parse_args()
    namespaces.enter()
    end_on_signals()
    place = new_folder()
    network = namespaces.Network(args.hosts + 1, place)
    job = start(args, network)
    keep = True
    try:
        job.wait_for_size(args.hosts * SLOTS)
        chaos = Chaos(job, network, random.Random(args.seed))
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


def report(job: Job, chaos: Chaos, args: argparse.Namespace) -> None:
    """Says what was done, and checks what can be checked afterwards."""
    compared = check_history(job, args.worker)
    last = max(notes[-1].step for notes in job.notes.values() if notes)
    twice = max(note.twice for notes in job.notes.values() for note in notes)
    happened = ", ".join(f"{count} × {kind}" for kind, count in sorted(chaos.counts.items()))
    print(f"{happened}; {len(job.notes)} processes made {last} steps; {compared}")
    print(f"every sample of every epoch was used once, but {twice} at ends of epochs, for ranks that had just joined")
    if args.replay:
        words = [args.replay, str(job.folder / "decisions")]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            job.fail(done.stderr.strip())
        print(done.stdout.strip())


if __name__ == "__main__":
    main()
