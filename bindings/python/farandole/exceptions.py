"""The exceptions of Horovod's API.

Invariant: what fails because of the other ranks, or with them, is a `HorovodInternalError`; what the caller alone did
wrong is a `ValueError`. The first is made by the engine and is defined beside it; here it gets its public place.
"""

from __future__ import annotations

from farandole._native import HorovodInternalError

__all__ = [
    "HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt", "get_version_mismatch_message"
]


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
