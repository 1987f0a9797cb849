"""Resets TCP connections between two hosts of a `namespaces.Network`, as a firewall or a NAT without state does.

A thread reads every segment that passes between the two hosts and answers it with two forged segments with the flag
RST, one for each end. The kernel accepts a reset only with the next expected sequence number (RFC 5961), which follows
from the segment that was read. So every connection that carries data ends on both sides with ECONNRESET, data in flight
is lost, and both processes live.
"""

from __future__ import annotations

import errno
import socket
import struct
import threading

import namespaces

_ETH_P_ALL = 3
_IPV4 = b"\x08\x00"
_TCP = 6
_FIN, _SYN, _RST, _ACK = 1, 2, 4, 16
_TIMEOUT_S = 0.05
"""How long a read waits before the thread checks whether it should end."""


class Middlebox:
    """Resets all connections between hosts `one` and `other` until `close` is called."""

    def __init__(self, one: int, other: int) -> None:
        self.connections: set[frozenset[int]] = set()
        self._devices = {_packed(host): _device(host) for host in (one, other)}
        self._tap = _device(other)
        self._tap.settimeout(_TIMEOUT_S)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="middlebox", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Resets nothing from now on."""
        self._closed.set()
        self._thread.join()
        for device in [*self._devices.values(), self._tap]:
            device.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._answer(self._tap.recv(65535))
            except TimeoutError:
                continue
            except OSError as error:
                # The cable of one of the hosts is out.
                if error.errno != errno.ENETDOWN:
                    raise

    def _answer(self, frame: bytes) -> None:
        ethernet, ip = frame[:14], frame[14:]
        if ethernet[12:14] != _IPV4 or ip[9] != _TCP or {ip[12:16], ip[16:20]} != self._devices.keys():
            return
        source, target = ip[12:16], ip[16:20]
        header, total = (ip[0] & 15) * 4, struct.unpack("!H", ip[2:4])[0]
        tcp = ip[header:total]
        from_port, to_port, sequence, acknowledged = struct.unpack("!HHII", tcp[:12])
        flags = tcp[13]
        if flags & _RST:
            return
        taken = len(tcp) - (tcp[12] >> 4) * 4 + bool(flags & _SYN) + bool(flags & _FIN)
        self.connections.add(frozenset([from_port, to_port]))
        forward = _reset(source, target, from_port, to_port, sequence + taken)
        self._devices[target].send(ethernet + forward)
        if flags & _ACK:
            back = _reset(target, source, to_port, from_port, acknowledged)
            self._devices[source].send(ethernet[6:12] + ethernet[:6] + _IPV4 + back)


def _packed(host: int) -> bytes:
    return socket.inet_aton(namespaces.address(host))


def _device(host: int) -> socket.socket:
    """The switch's end of a host's cable."""
    device = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    device.bind((f"port{host}", 0))
    return device


def _reset(source: bytes, target: bytes, from_port: int, to_port: int, sequence: int) -> bytes:
    """An IPv4 packet with a reset."""
    data_offset_words = 5
    fields = (from_port, to_port, sequence & 0xFFFFFFFF, 0, data_offset_words << 4, _RST, 0)
    pseudo_header = source + target + struct.pack("!BBH", 0, _TCP, 4 * data_offset_words)
    unchecked = struct.pack("!HHIIBBHHH", *fields, 0, 0)
    tcp = struct.pack("!HHIIBBHHH", *fields, _checksum(pseudo_header + unchecked), 0)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, _TCP, 0, source, target)
    return ip[:10] + struct.pack("!H", _checksum(ip)) + ip[12:] + tcp


def _checksum(data: bytes) -> int:
    """The internet checksum (RFC 1071)."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
