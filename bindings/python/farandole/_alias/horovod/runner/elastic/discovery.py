"""`horovod.runner.elastic.discovery`: where hosts come from, as classes that scripts derive from and call.

`farandole run --host-discovery-script` asks its script by itself; these are for scripts that ask. Not there: Horovod's
HostManager, whose work (blacklists, cool-down) is the launcher's.
"""

from __future__ import annotations

import subprocess
from collections import OrderedDict
from typing import Optional

__all__ = ["FixedHosts", "HostDiscovery", "HostDiscoveryScript"]


class HostDiscovery:
    """Something that knows the hosts of a job."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """The hosts that are there now, with the number of ranks for each."""
        raise NotImplementedError


class HostDiscoveryScript(HostDiscovery):
    """A program that prints a line `host` or `host:slots` for each host.

    slots: for lines that name none; `None`: such lines are an error.
    """

    def __init__(self, discovery_script: str, slots: Optional[int]) -> None:
        self._discovery_script = discovery_script
        self._default_slots = slots

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Runs the program. Raises `RuntimeError` with what it wrote if it fails."""
        done = subprocess.run(self._discovery_script, shell=True, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(
                f"Failed to execute discovery script: {self._discovery_script}. Exit code: {done.returncode}\n"
                f"{done.stderr}"
            )
        found: dict[str, int] = OrderedDict()
        for line in filter(None, map(str.strip, done.stdout.splitlines())):
            host, separator, slots = line.rpartition(":")
            if separator:
                found[host] = int(slots)
            elif self._default_slots is None:
                raise ValueError(
                    f"the line {line!r} of {self._discovery_script} names no slots: print host:slots, or give "
                    "--slots-per-host"
                )
            else:
                found[line] = self._default_slots
        return found


class FixedHosts(HostDiscovery):
    """Hosts that somebody sets."""

    def __init__(self, host_slots: dict[str, int]) -> None:
        self._host_slots = host_slots

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Those that were set last."""
        return self._host_slots

    def set(self, host_slots: dict[str, int]) -> None:
        """From now on these."""
        self._host_slots = host_slots
