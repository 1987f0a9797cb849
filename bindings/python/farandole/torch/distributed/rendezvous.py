"""`env://` under launchers that do not set torch's variables, and under ours.

`init_process_group` reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which torchrun and `farandole run` set.
`mpirun` and `srun` do not, but the engine knows its rank under them. So where one of the four is missing and a launcher
has started this process, the engine's world is made first, and rank 0 opens a store at a free port and tells the
others. Under `farandole run` too: at MASTER_PORT, a rank that makes its next process group at once could still find the
store of the last one, which is about to close.

torch loads a backend by its entry point after the rendezvous. So under `mpirun` and `srun` a script must import
`farandole.torch.distributed` itself.

Frameworks on top of torch (Accelerate, Lightning) ask the environment for a process's place, too, once there is a
process group. So what torchrun would have said of it is set there.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlparse

import torch
import torch.distributed as dist

from farandole import _native
from farandole.torch.broadcast_ops import broadcast
from farandole.torch.distributed import membership

__all__ = ["extend_env"]

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_ADDRESS_BYTES = 300
"""Enough for the longest name of a host and a port."""


def extend_env() -> None:
    """Has `env://` ask the engine where torch's variables are missing."""
    # The package has a function of the same name, which hides the module.
    handlers = importlib.import_module("torch.distributed.rendezvous")._rendezvous_handlers
    of_torch = handlers["env"]

    def handler(url: str, timeout: timedelta = dist.default_pg_timeout, **options: Any) -> Iterator[Any]:
        given = parse_qs(urlparse(url).query)
        is_complete = all(os.environ.get(name) or name.lower() in given for name in _VARIABLES)
        if _native.launched() is None or is_complete and (given or not _is_of_our_launcher()):
            yield from of_torch(url, timeout=timeout, **options)
        else:
            membership.make_world()
            _describe_place()
            yield _open_store(timeout), _native.rank(), _native.size()
            raise RuntimeError("Unable to perform re-rendezvous using environment variables")

    handlers["env"] = handler


def _is_of_our_launcher() -> bool:
    """Whether the variables are those that `farandole run` has set, and the program has not set others since."""
    store = ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    return store == os.environ.get("FARANDOLE_TORCH_STORE")


def _describe_place() -> None:
    """Sets the variables in which torchrun says which rank a process is. Where the store is, this module knows."""
    place = {
        "RANK": _native.rank(),
        "WORLD_SIZE": _native.size(),
        "LOCAL_RANK": _native.local_rank(),
        "LOCAL_WORLD_SIZE": _native.local_size(),
    }
    os.environ.update({name: str(number) for name, number in place.items()})


def _open_store(timeout: timedelta) -> dist.TCPStore:
    """A store in rank 0. All ranks call this."""
    is_one_host = _native.local_size() == _native.size()
    if _native.rank() == 0:
        host = "127.0.0.1" if is_one_host else socket.getfqdn()
        store = dist.TCPStore(host, 0, None, is_master=True, timeout=timeout, wait_for_workers=False)
        _broadcast_text(f"{host} {store.port}")
        return store
    host, port = _broadcast_text("").split()
    return dist.TCPStore(host, int(port), None, is_master=False, timeout=timeout)


def _broadcast_text(text: str) -> str:
    """Rank 0's text, on all ranks."""
    encoded = torch.zeros(_ADDRESS_BYTES, dtype=torch.uint8, device="cpu")
    data = text.encode()
    encoded[: len(data)] = torch.tensor(list(data), dtype=torch.uint8, device="cpu")
    return bytes(broadcast(encoded, 0, name="c10d.store").tolist()).rstrip(b"\0").decode()
