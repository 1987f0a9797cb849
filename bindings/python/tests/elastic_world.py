"""A job of threads that can lose ranks and gain them, in place of the engine: for tests of elastic training.

Each rank is a thread with a real `Training`. What this asks of the engine (`farandole.elastic.native`, and the transfer
of states) is answered here. Only one thread runs at a time, and whenever one calls, a seeded generator chooses who goes
on; so a seed gives the same history every time, and a job that cannot go on is noticed at once, by its threads all
waiting.

A rank dies in a collective call, before it has contributed or after. In the second case the others may get the result
or hear of the death first, each by chance; whoever has heard of it gets nothing more in this generation. A generation
ends when somebody asks for the next one, which begins when all survivors have.
"""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from farandole.elastic import native
from farandole.exceptions import HorovodInternalError
from farandole.torch.elastic import transfer

DEADLINE_S = 30


class Killed(BaseException):
    """Ends the thread of a rank, past everything that would catch an exception."""


class Stuck(BaseException):
    """All ranks wait; or the job is over before this process could join."""


class Generation:
    """Ranks that work together until somebody asks for the next generation."""

    def __init__(self, members: Sequence[int]) -> None:
        self.members = list(members)
        self.is_broken = False
        self.calls: dict[tuple[str, int], dict[int, Any]] = {}


class World:
    """The job. `kills` is how probably a call kills its rank, `joins` how probably it brings a new process."""

    def __init__(
        self, seed: int, ranks: int, script: Callable[[World], Any], *, kills: float, joins: float, most_ranks: int
    ) -> None:
        self.random = random.Random(seed)
        self.script, self.kills, self.joins, self.most_ranks = script, kills, joins, most_ranks
        self.generation = Generation(range(ranks))
        self.alive = set(range(ranks))
        self.doomed: set[int] = set()
        self.at_boundary: set[int] = set()
        self.candidates: list[int] = []
        self.next_member = ranks
        self.results: dict[int, Any] = {}
        self.errors: list[BaseException] = []
        self.deaths = self.arrivals = 0
        self._here = threading.local()
        self._waiting: dict[int, Callable[[], bool]] = {}
        self._events: dict[int, threading.Event] = {}
        self._threads: list[threading.Thread] = []
        self._turned_away: set[int] = set()
        self._is_stuck = False
        self._over = threading.Event()

    def run(self) -> dict[int, Any]:
        """What the ranks that live to the end return."""
        for member in range(len(self.generation.members)):
            self._start(member, lambda: True)
        self._hand_over()
        assert self._over.wait(DEADLINE_S), f"still running after {DEADLINE_S} s"
        for thread in self._threads:
            thread.join(DEADLINE_S)
        if self.errors:
            raise self.errors[0]
        return self.results

    # What stands in for the engine

    def replace_engine(self, patch: pytest.MonkeyPatch) -> None:
        """Has elastic training ask this world."""
        replacements = {
            "enabled": lambda: True,
            "candidates": lambda: min(len(self.candidates), self.most_ranks - len(self.generation.members)),
            "note_synchronised": lambda: None,
            "note_stepped": lambda: None,
            "note_step_lost": lambda fate: None,
            "next_generation": self.next_generation,
            "is_rank": lambda: True,
            "rank": self.rank,
            "size": lambda: len(self._here.generation.members),
            "begin_largest": self.begin_largest,
            "largest": lambda values, name: self.begin_largest(values, name)(),
            "gathered": lambda values, name: self.gather(name, list(values)),
        }
        for name, replacement in replacements.items():
            patch.setattr(native, name, replacement)
        patch.setattr(transfer, "send_or_receive", self.send_or_receive)

    def rank(self) -> int:
        """The caller's place in its generation."""
        return self._here.generation.members.index(self._here.member)

    def begin_largest(self, values: Sequence[int], name: str) -> Callable[[], list[int]]:
        """Contributes now, waits later."""
        key = self._contribute(name, list(values))
        return lambda: [max(column) for column in zip(*self._wait_for(key))]

    def gather(self, name: str, value: Any) -> list[Any]:
        """Everybody's values, in the order of ranks."""
        return self._wait_for(self._contribute(name, value))

    def send_or_receive(self, source: int, model: Any, optimizer: Any, others: dict[str, Any]) -> None:
        """Parameters, and the states of the others."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        own = [parameter.detach().clone() for parameter in parameters]
        states = {name: copy.deepcopy(other.state_dict()) for name, other in others.items()}
        theirs, their_states = self.gather("state", (own, states))[source]
        for parameter, value in zip(parameters, theirs, strict=True):
            parameter.data.copy_(value)
        for name, other in others.items():
            other.load_state_dict(their_states[name])

    def next_generation(self) -> None:
        """Comes to the boundary and waits for the survivors."""
        me, old = self._here.member, self._here.generation
        old.is_broken = True
        self.at_boundary.add(me)
        self._wait(lambda: self.generation is not old or self._survivors(old) <= self.at_boundary)
        if self.generation is old:
            survivors = [member for member in old.members if member in self.alive]
            # A job that somebody has done with takes nobody in, who would begin it again.
            taken = [] if self.results else self.candidates[: self.most_ranks - len(survivors)]
            self.candidates = self.candidates[len(taken) :]
            self.generation = Generation(survivors + taken)
            self.at_boundary = set()
        self._enter()

    def _survivors(self, generation: Generation) -> set[int]:
        return {member for member in generation.members if member in self.alive}

    def _contribute(self, name: str, value: Any) -> tuple[Generation, tuple[str, int]]:
        generation, me = self._here.generation, self._here.member
        if self.random.random() < self.joins and self.next_member < 40:
            self._bring_candidate()
        dies = self.random.random() < self.kills and len(self._survivors(self.generation) - self.doomed) > 1
        if dies:
            self.doomed.add(me)
        if dies and self.random.random() < 0.5:
            self._die()
        self._wait(lambda: True)
        number = self._here.counts.get(name, 0)
        self._here.counts[name] = number + 1
        generation.calls.setdefault((name, number), {})[me] = value
        if dies:
            self._die()
        return generation, (name, number)

    def _wait_for(self, call: tuple[Generation, tuple[str, int]]) -> list[Any]:
        generation, key = call
        given = generation.calls[key]

        def is_over() -> bool:
            return len(given) == len(generation.members) or self._is_broken(generation)

        self._wait(is_over)
        is_complete = len(given) == len(generation.members)
        if self._here.has_heard or not is_complete or (self._is_broken(generation) and self.random.random() < 0.5):
            self._here.has_heard = True
            raise HorovodInternalError(f"{key}: a rank is lost")
        return [given[member] for member in generation.members]

    def _is_broken(self, generation: Generation) -> bool:
        return generation.is_broken or any(member not in self.alive for member in generation.members)

    # Threads

    def _bring_candidate(self) -> None:
        member, self.next_member = self.next_member, self.next_member + 1
        self.arrivals += 1
        self.alive.add(member)
        self.candidates.append(member)
        self._start(member, lambda: member in self.generation.members)

    def _start(self, member: int, may_begin: Callable[[], bool]) -> None:
        self._events[member] = threading.Event()
        self._waiting[member] = may_begin
        thread = threading.Thread(target=self._live, args=(member,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _live(self, member: int) -> None:
        self._here.member = member
        try:
            self._await_turn(member)
            self._enter()
            self.results[member] = self.script(self)
        except (Killed, Stuck):
            if member in self._turned_away:
                return
        except BaseException as error:
            self.errors.append(error)
        self.alive.discard(member)
        if not self._survivors(self.generation):
            # Processes that wait for a job that is over are ended by its launcher.
            for candidate in self.candidates:
                if self._waiting.pop(candidate, None):
                    self._turned_away.add(candidate)
                    self._events[candidate].set()
        self._hand_over()

    def _enter(self) -> None:
        self._here.generation, self._here.counts, self._here.has_heard = self.generation, {}, False

    def _die(self) -> None:
        self.deaths += 1
        raise Killed

    def _wait(self, until: Callable[[], bool]) -> None:
        me = self._here.member
        self._waiting[me] = until
        self._hand_over()
        self._await_turn(me)

    def _await_turn(self, me: int) -> None:
        assert self._events[me].wait(DEADLINE_S), "nobody handed over"
        self._events[me].clear()
        if self._is_stuck or me in self._turned_away:
            raise Stuck

    def _hand_over(self) -> None:
        """Chooses who goes on."""
        able = sorted(member for member, until in self._waiting.items() if self._is_stuck or until())
        if not able:
            if not self._waiting:
                self._over.set()
                return
            self._is_stuck = True
            self.errors.append(AssertionError(f"all wait: {sorted(self._waiting)}, dead {self.deaths}"))
            able = sorted(self._waiting)
        chosen = self.random.choice(able)
        del self._waiting[chosen]
        self._events[chosen].set()
