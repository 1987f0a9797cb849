"""How a process group gets its ranks of the engine.

The engine's *world* is made with the first process group: the default one, or a group with backend "farandole" beside a
default group of another backend. Later groups are parts of that world.

**The world.** A process that is a rank of the engine already stays that. One that our launcher has started as the same
rank meets the others at the launcher, as `farandole.torch.init()` does. All others meet through the group's store: each
rank writes which host it is on, rank 0 reads all and writes a *job word* that it makes up, and where it can be met if
there are several hosts. A store answers whoever asks, so no key goes through it: on one host the job word names a
socket through which rank 0 gives the key to processes of the same user, and between hosts all ranks must have the key
(`FARANDOLE_KEY`, or a file; `docs/launchers.md`).

**Groups.** torch calls a group's members only. They join the engine's group by a number that the group's first member
draws from a counter in the world's store, and passes on through the group's.

Keys in stores begin with the *epoch*, how many worlds this process has made before: a store may outlive a world.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from farandole import _native
from farandole.basics import basics

__all__ = ["Membership", "join", "make_world"]


@dataclass
class _World:
    """The engine's world, as torch knows it."""

    global_ranks: list[int]
    """torch's global rank of each rank of the engine."""
    store: Any
    owned: bool
    """Whether a process group made it, and ends it."""


@dataclass(frozen=True)
class Membership:
    """A process group's place in the engine."""

    group: int
    """The engine's number of the group."""
    ranks: tuple[int, ...]
    """Ranks of the engine's world, by rank in the group."""
    rank: int
    """This process's rank in the group."""

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        return len(self.ranks)

    def split(self, store: Any, ranks: Sequence[int]) -> Membership:
        """Joins this process to a new group of ranks of this group, of which it is one. All of them call this."""
        assert _world is not None, "invariant: who has a membership has a world"
        global_ranks = [_world.global_ranks[self.ranks[rank]] for rank in ranks]
        return _join_group(_world, store, list(ranks).index(self.rank), global_ranks)

    def leave(self) -> None:
        """Ends the group; the world, if a process group made it."""
        global _world
        if not _native.is_initialized():
            return
        if self.group != 0:
            _native.leave_group(self.group)
        elif _world is not None:
            owned, _world = _world.owned, None
            if owned:
                basics.shutdown()


_world: Optional[_World] = None
_epoch = 0
_world_made_by_rendezvous = False


def make_world() -> None:
    """Makes this process a rank of its job before there is a store; the first process group takes the world over."""
    global _world_made_by_rendezvous
    if not _native.is_initialized():
        basics.init()
        _world_made_by_rendezvous = True


def join(store: Any, rank: int, size: int, global_ranks: Sequence[int]) -> Membership:
    """Joins this process to a new process group. All its members call this.

    store: of this group alone. global_ranks: of the members; empty for the default group.
    """
    if _world is None or not _native.is_initialized():
        return _join_world(store, rank, size, list(global_ranks) or list(range(size)))
    return _join_group(_world, store, rank, list(global_ranks) or list(range(size)))


def _join_world(store: Any, rank: int, size: int, global_ranks: list[int]) -> Membership:
    global _world, _epoch, _world_made_by_rendezvous
    _epoch += 1
    owned = _world_made_by_rendezvous or not _native.is_initialized()
    _world_made_by_rendezvous = False
    if not _native.is_initialized():
        if _native.launched() == (rank, size, True):
            basics.init()
        else:
            basics.init(store_rank=(rank, size, *_meet_in_store(store, rank, size)))
    if (_native.rank(), _native.size()) != (rank, size):
        raise ValueError(
            f"This process is rank {_native.rank()} of {_native.size()} in farandole, but rank {rank} of {size} in the "
            'process group. The first process group with the backend "farandole" must have the ranks of the job.'
        )
    _world = _World(global_ranks, store, owned)
    return Membership(0, tuple(range(size)), rank)


def _meet_in_store(store: Any, rank: int, size: int) -> tuple[str, Optional[str]]:
    """The job word, and where rank 0 can be met: `None` if all ranks are on this host."""
    prefix = f"farandole/{_epoch}"
    store.set(f"{prefix}/host/{rank}", _native.host_identity())
    if rank == 0:
        hosts = {store.get(f"{prefix}/host/{other}") for other in range(size)}
        address = "" if len(hosts) == 1 else f"tcp:{_address_of_this_host()}"
        store.set(f"{prefix}/meeting", f"{secrets.token_hex(16)} {address}")
    word, _, address = store.get(f"{prefix}/meeting").decode().partition(" ")
    return word, address or None


def _address_of_this_host() -> str:
    """A name of this host for others, with a port that is free now."""
    host = os.environ.get("MASTER_ADDR") or socket.getfqdn()
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _join_group(world: _World, store: Any, rank: int, global_ranks: list[int]) -> Membership:
    missing = [other for other in global_ranks if other not in world.global_ranks]
    if missing:
        raise ValueError(
            f'Ranks {missing} are not in the first process group with the backend "farandole", which has ranks '
            f"{world.global_ranks}. Make a group of all ranks first."
        )
    ranks = tuple(world.global_ranks.index(other) for other in global_ranks)
    key = f"farandole/{_epoch}/group"
    if rank == 0:
        store.set(key, str(world.store.add(f"farandole/{_epoch}/groups", 1)))
    return Membership(_native.join_group(int(store.get(key)), ranks), ranks, rank)
