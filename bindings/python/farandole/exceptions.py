"""The exceptions of this package and of Horovod's API.

    HorovodInternalError         Horovod's; the base class only
    └── FarandoleError           a collective was refused by the ranks, or the job cannot go on
        ├── RankLostError        a rank died, was cut off or left
        ├── MismatchError        the requests of the ranks differ
        └── StallError           a wait has passed its limit

Invariant: what fails because of the other ranks, or with them, is a `FarandoleError`, so `except HorovodInternalError`
catches it; what the caller alone did wrong is a `ValueError`. The engine makes the exceptions, and defines them.

A framework in which an error comes back as a text, or as an exception of its own, has exceptions that derive from one
of these and from the framework's: `class_of` and `named_in` find out which.
"""

from __future__ import annotations

import re
from typing import Optional

from farandole._native import FarandoleError, HorovodInternalError, MismatchError, RankLostError, StallError

__all__ = [
    "FarandoleError",
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "MismatchError",
    "RankLostError",
    "StallError",
    "class_of",
    "get_version_mismatch_message",
    "named_in",
]

_CLASSES: tuple[type[FarandoleError], ...] = (RankLostError, MismatchError, StallError, FarandoleError)
"""The last one is the base of the others."""

_NAME = re.compile(rf"farandole\.({'|'.join(kind.__name__ for kind in _CLASSES)}): ")


def class_of(error: BaseException) -> type[FarandoleError]:
    """Which of our exceptions an error is, also if it is one of a framework's as well."""
    return next((kind for kind in _CLASSES if isinstance(error, kind)), FarandoleError)


def named_in(text: str) -> Optional[tuple[type[FarandoleError], str]]:
    """The exception that the native library has named in a text that a framework carried, and what it says."""
    found = _NAME.search(text)
    if found is None:
        return None
    kind = next(kind for kind in _CLASSES if kind.__name__ == found[1])
    return kind, text[found.end() :]


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of the job have changed; training goes on with the new ones.

    `skip_sync` says that the state of this rank is still that of the others.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """What `HorovodVersionMismatchError` says."""
    return (
        f"Framework {name} installed with version {installed_version} but found version {version}. "
        "Farandole reaches tensors by pointer and is not built against a framework; this concerns other extensions."
    )


class HorovodVersionMismatchError(ImportError):
    """A framework is not the one an extension was built against.

    Nothing here raises it, as nothing here is built against a framework. It exists for scripts that catch it.
    """

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version
