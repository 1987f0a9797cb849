"""Hosts that are network namespaces of this machine, joined by a bridge, whose cables can be cut.

Every host has a name (`h0`, `h1`, …), an address and one device, `eth0`, whose cable ends in the bridge. An `ssh` of
our own, in a folder that goes to the front of the path, starts commands on them. Host 0 is where the launcher runs.

`enter` starts the program anew in namespaces of its own (network, processes, mounts, host name). So nothing meets what
the machine has, and the kernel ends everything when the program ends, however it ends.

Faults: `cut` takes the cable of a host out of the bridge: nothing comes through in either direction, and no connection
is told. `silence` drops what one host sends to another, `lose` drops packets to a host at random; both are nftables
rules of the receiver, which need the package nftables.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

_INSIDE = "ELASTIC_NAMESPACES"
"""Says that the namespaces have been entered."""

_FILTER = """
table inet faults {
  set silent { type ipv4_addr; }
  chain input {
    type filter hook input priority 0;
    ip saddr @silent drop
    jump loss
  }
  chain loss {}
}
"""
"""The rules of a host that loses nothing."""

_SSH = """#!/bin/sh
host= last=
for word; do host=$last; last=$word; done
if [ "$1" = -G ]; then echo "hostname $(cat {folder}/address.$last)"; echo port 22; exit 0; fi
[ -e {folder}/down.$host ] && {{ echo "connect to host $host: no route to host" >&2; exit 255; }}
# What runs there does not end because whoever has called does.
exec 3<&0
nsenter --target "$(cat {folder}/keeper.$host)" --net --uts sh -c "$last" <&3 &
exec 3<&-
wait $!
"""


def enter() -> None:
    """Returns inside the namespaces; the program begins anew for that."""
    if os.environ.get(_INSIDE):
        return
    if os.geteuid() != 0:
        raise SystemExit("cuts are made in network namespaces: run this as root")
    kinds = ["--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    # The first process inherits orphans; a shell that waits reaps them.
    shell = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, *sys.argv]
    os.environ[_INSIDE] = "1"
    os.execvp("unshare", ["unshare", *kinds, *shell])


class Network:
    """So many hosts and the bridge between them. What was cut is said in files of `folder`, for the `ssh`."""

    def __init__(self, hosts: int, folder: pathlib.Path) -> None:
        self.folder = folder
        self._filtered: set[int] = set()
        _ip("link", "set", "lo", "up")
        _ip("link", "add", "switch", "type", "bridge")
        _ip("link", "set", "switch", "up")
        self._keepers = [self._make_host(number) for number in range(hosts)]
        self._networks = {os.readlink(f"/proc/{keeper.pid}/ns/net"): at for at, keeper in enumerate(self._keepers)}
        names = "".join(f"{address(number)} {name(number)}\n" for number in range(hosts))
        self._write("hosts", f"127.0.0.1 localhost\n::1 localhost\n{names}")
        subprocess.run(["mount", "--bind", str(folder / "hosts"), "/etc/hosts"], check=True)
        self._write("ssh", _SSH.format(folder=folder)).chmod(0o755)

    def __len__(self) -> int:
        return len(self._keepers)

    def words_on(self, host: int) -> list[str]:
        """What makes a command one of this host, before its words."""
        return ["nsenter", "--target", str(self._keepers[host].pid), "--net", "--uts", "--"]

    def path(self) -> str:
        """Where commands are found, the `ssh` before all."""
        return f"{self.folder}:{os.environ['PATH']}"

    def cut(self, host: int) -> None:
        """Nothing comes to a host, and nothing from it."""
        (self.folder / f"down.{name(host)}").touch()
        _ip("link", "set", f"port{host}", "down")

    def mend(self, host: int) -> None:
        """Puts the cable back in."""
        _ip("link", "set", f"port{host}", "up")
        (self.folder / f"down.{name(host)}").unlink(missing_ok=True)

    def silence(self, host: int, to: int) -> None:
        """Drops what one host sends to another."""
        self._filter(to, f"add element inet faults silent {{ {address(host)} }}")

    def speak(self, host: int, to: int) -> None:
        """Ends `silence`."""
        self._filter(to, f"delete element inet faults silent {{ {address(host)} }}")

    def lose(self, host: int, percent: int) -> None:
        """Drops a share of the packets that a host receives, at random; 0 ends it."""
        self._filter(host, "flush chain inet faults loss")
        if percent > 0:
            rule = f"add rule inet faults loss iifname eth0 numgen random mod 100 < {percent} drop"
            self._filter(host, rule)

    def host_of(self, pid: int) -> int | None:
        """The host on which a process runs; `None` if it is gone."""
        try:
            own = os.readlink(f"/proc/{pid}/ns/net")
        except OSError:
            return None
        return self._networks.get(own)

    def _make_host(self, number: int) -> subprocess.Popen[bytes]:
        script = 'hostname "$1" && ip link set lo up && echo up && exec cat >/dev/null'
        words = ["unshare", "--net", "--uts", "sh", "-c", script, "keeper", name(number)]
        keeper = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert keeper.stdout is not None, "invariant: it was asked for"
        if keeper.stdout.readline() != b"up\n":
            raise SystemExit(f"{name(number)} could not be made; the words of ip are above")
        self._write(f"keeper.{name(number)}", str(keeper.pid))
        self._write(f"address.{name(number)}", address(number))
        _ip("link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", str(keeper.pid))
        _ip("link", "set", f"port{number}", "master", "switch", "up")
        inside = ["nsenter", "--target", str(keeper.pid), "--net", "--", "ip"]
        subprocess.run([*inside, "address", "add", f"{address(number)}/24", "dev", "eth0"], check=True)
        subprocess.run([*inside, "link", "set", "eth0", "up"], check=True)
        return keeper

    def _filter(self, host: int, command: str) -> None:
        """Runs nft on a host, which gets its rules with the first command."""
        nft = ["nsenter", "--target", str(self._keepers[host].pid), "--net", "--", "nft"]
        if host not in self._filtered:
            subprocess.run([*nft, "-f", "-"], input=_FILTER, text=True, check=True)
            self._filtered.add(host)
        subprocess.run([*nft, command], check=True)

    def _write(self, file: str, text: str) -> pathlib.Path:
        path = self.folder / file
        path.write_text(text)
        return path


def name(host: int) -> str:
    """What a host is called."""
    return f"h{host}"


def address(host: int) -> str:
    """Where a host is reached."""
    return f"10.77.0.{host + 1}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
