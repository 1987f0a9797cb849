"""Where dispatchers and workers of the data service announce themselves, and where everybody else waits for them.

`ComputeService` is a small TCP server in one process of the compute job; `ComputeClient` asks it. Both have the names
and methods of Horovod's.

**Protocol.** One request on each connection. The server sends a nonce of 32 bytes. Both sides then send one frame: 4
bytes of length, big-endian; 32 bytes of HMAC-SHA256, with the key of the service, over the direction, the nonce and the
payload; the payload, JSON. A frame with another length than is allowed, or with a wrong code, is dropped before it is
parsed; the nonce keeps an old frame from counting again. Nothing is pickled. Payloads are not encrypted: they hold
addresses and numbers.

Invariant: a request is answered, or its connection ends. Waiting for a registration has a deadline, which the client
names; waiting for the shutdown ends with the service.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import secrets
import socket
import socketserver
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

__all__ = ["ComputeClient", "ComputeService", "TimeoutException"]

_NONCE_BYTES = 32
_CODE_BYTES = 32
# Addresses and numbers need a few hundred bytes.
_MAX_PAYLOAD_BYTES = 64 * 1024
# A stranger who connects and says nothing is let go after this. A peer that is merely slow needs far less.
_HANDSHAKE_SECONDS = 30.0
_REQUEST, _REPLY = b"request", b"reply"
_SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface


class TimeoutException(TimeoutError):
    """Somebody has not registered in time."""


_ERRORS: dict[str, type[Exception]] = {
    "IndexError": IndexError,
    "TimeoutException": TimeoutException,
    "ValueError": ValueError,
}
"""What a request can raise at the client."""


def _code(key: bytes, direction: bytes, nonce: bytes, payload: bytes) -> bytes:
    return hmac.digest(key, direction + nonce + payload, hashlib.sha256)


def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            raise ConnectionError("the connection ended in the middle of a frame")
        parts += part
    return bytes(parts)


def _send_frame(
    connection: socket.socket, key: bytes, direction: bytes, nonce: bytes, message: Mapping[str, Any]
) -> None:
    payload = json.dumps(message).encode()
    connection.sendall(struct.pack(">I", len(payload)) + _code(key, direction, nonce, payload) + payload)


def _receive_frame(connection: socket.socket, key: bytes, direction: bytes, nonce: bytes) -> dict[str, Any]:
    """A frame of somebody who knows the key; `ConnectionError` for any other."""
    (length,) = struct.unpack(">I", _receive_exactly(connection, 4))
    if length > _MAX_PAYLOAD_BYTES:
        raise ConnectionError(f"a frame of {length} bytes, {_MAX_PAYLOAD_BYTES} are allowed")
    code = _receive_exactly(connection, _CODE_BYTES)
    payload = _receive_exactly(connection, length)
    if not hmac.compare_digest(code, _code(key, direction, nonce, payload)):
        raise ConnectionError("a frame of somebody who does not know the key of the compute service")
    message = json.loads(payload)
    if not isinstance(message, dict):
        raise ConnectionError("a frame that is no JSON object")
    return message


class _Handler(socketserver.BaseRequestHandler):
    """Answers one connection, on a thread of its own."""

    server: "_Server"

    def handle(self) -> None:
        """Reads a request, waits for what it waits for, and replies."""
        key = self.server.key
        nonce = secrets.token_bytes(_NONCE_BYTES)
        try:
            self.request.settimeout(_HANDSHAKE_SECONDS)
            self.request.sendall(nonce)
            request = _receive_frame(self.request, key, _REQUEST, nonce)
            try:
                reply: dict[str, Any] = {"value": self.server.answer(request)}
            except tuple(_ERRORS.values()) as error:
                reply = {"error": type(error).__name__, "message": str(error)}
            _send_frame(self.request, key, _REPLY, nonce, reply)
        except OSError:
            # The peer is gone, silent or a stranger; none of them is owed an answer.
            return


class _Server(socketserver.ThreadingTCPServer):
    """Threads may outlive a shutdown only if their peers do not take their answers."""

    allow_reuse_address = True
    daemon_threads = True
    # A job of many ranks connects all at once.
    request_queue_size = 1024

    def __init__(self, key: bytes, answer: Any) -> None:
        super().__init__(("0.0.0.0", 0), _Handler)
        self.key = key
        self.answer = answer
        self._active = 0
        self._idle = threading.Condition()
        """Signals, from threads of connections to the one that shuts down, that the last answer is out."""

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Counts connections while they are answered."""
        with self._idle:
            self._active += 1
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._idle:
                self._active -= 1
                self._idle.notify_all()

    def drain(self, seconds: float) -> None:
        """Waits until all connections are answered, for so long at most."""
        with self._idle:
            self._idle.wait_for(lambda: self._active == 0, seconds)


class ComputeService:
    """The registry. It listens from its construction to `shutdown`.

    Arguments:
        dispatchers: how many there will be.
        workers_per_dispatcher: how many workers register for each.
        key: what clients have to know.
        nics: names of the network interfaces whose addresses are announced; by default, all.
    """

    def __init__(
        self, dispatchers: int, workers_per_dispatcher: int, key: bytes, nics: Optional[Iterable[str]] = None
    ) -> None:
        if dispatchers <= 0:
            raise ValueError(f"The number of dispatchers must be larger than 0: {dispatchers}")
        if workers_per_dispatcher <= 0:
            raise ValueError(f"The number of workers per dispatcher must be larger than 0: {workers_per_dispatcher}")
        if not key:
            raise ValueError("The compute service needs a key")
        self._workers_per_dispatcher = workers_per_dispatcher
        self._addresses: list[Optional[str]] = [None] * dispatchers
        self._workers: list[set[int]] = [set() for _ in range(dispatchers)]
        self._shut_down = False
        self._changed = threading.Condition()
        """Guards the four above: threads of connections change them and wait for changes."""
        self._nics = None if nics is None else set(nics)
        self._server = _Server(key, self._answer)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self._thread.start()

    def addresses(self) -> dict[str, list[tuple[str, int]]]:
        """Where the service listens: by interface, pairs of address and port."""
        port = self._server.server_address[1]
        found = {name: [(address, port)] for name, address in _interfaces() if self._nics is None or name in self._nics}
        if not found:
            raise ValueError(f"No network interface has an address; asked for {sorted(self._nics or ())}")
        return found

    def shutdown(self) -> None:
        """Tells everybody who waits for the shutdown, and ends. May be called again."""
        with self._changed:
            self._shut_down = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.drain(seconds=5.0)
        self._server.server_close()
        self._thread.join(5.0)

    def _answer(self, request: dict[str, Any]) -> Any:
        kind = request.get("kind")
        if kind == "probe":
            return None
        if kind == "shutdown":
            # On another thread, because this one is waited for.
            threading.Thread(target=self.shutdown, daemon=True).start()
            return None
        if kind == "wait_for_shutdown":
            with self._changed:
                self._changed.wait_for(lambda: self._shut_down)
            return None
        dispatcher = self._dispatcher(request)
        if kind == "register_dispatcher":
            return self._register_dispatcher(dispatcher, str(request.get("address")))
        if kind == "register_worker":
            with self._changed:
                self._workers[dispatcher].add(int(request.get("worker_id", -1)))
                self._changed.notify_all()
            return None
        if kind == "wait_for_dispatcher":
            self._wait(request, f"dispatcher {dispatcher} to register", lambda: self._addresses[dispatcher] is not None)
            return self._addresses[dispatcher]
        if kind == "wait_for_workers":
            wanted = self._workers_per_dispatcher
            activity = f"workers for dispatcher {dispatcher} to register"
            self._wait(request, activity, lambda: len(self._workers[dispatcher]) >= wanted)
            return None
        raise ValueError(f"The compute service does not know requests of kind {kind!r}")

    def _dispatcher(self, request: dict[str, Any]) -> int:
        number = request.get("dispatcher_id")
        if not isinstance(number, int) or not 0 <= number < len(self._addresses):
            raise IndexError(f"Dispatcher id must be within [0..{len(self._addresses) - 1}]: {number}")
        return number

    def _register_dispatcher(self, dispatcher: int, address: str) -> None:
        with self._changed:
            known = self._addresses[dispatcher]
            if known not in (None, address):
                raise ValueError(
                    f"Dispatcher with id {dispatcher} has already been registered under different address {known}: "
                    f"{address}"
                )
            self._addresses[dispatcher] = address
            self._changed.notify_all()

    def _wait(self, request: dict[str, Any], activity: str, done: Any) -> None:
        seconds = float(request.get("timeout", 0))
        with self._changed:
            if not self._changed.wait_for(lambda: done() or self._shut_down, seconds):
                raise TimeoutException(
                    f"Timed out waiting for {activity}. Try to find out what takes it so long or increase timeout. "
                    f"Timeout after {seconds} seconds."
                )
            if not done():
                raise ValueError(f"The compute service was shut down while waiting for {activity}")


class ComputeClient:
    """Asks a `ComputeService`. Tries its addresses in turn, those of this host's loopback last, and stays with the
    first that answers.

    Arguments:
        compute_addresses: what `ComputeService.addresses` returned.
        key: the key of the service.
        verbose: not used.
    """

    def __init__(
        self, compute_addresses: Mapping[str, Sequence[tuple[str, int]]], key: bytes, verbose: int = 1
    ) -> None:
        pairs = [(str(host), int(port)) for entries in compute_addresses.values() for host, port in entries]
        self._candidates = sorted(pairs, key=lambda pair: pair[0].startswith("127."))
        self._key = key
        self.local_address = "127.0.0.1"
        """The address of this host on the way to the service, known after the first request."""

    def probe(self) -> None:
        """Finds out which address answers, and `local_address`."""
        self._ask("probe")

    def register_dispatcher(self, dispatcher_id: int, dispatcher_address: str) -> None:
        """Announces a dispatcher."""
        self._ask("register_dispatcher", dispatcher_id=dispatcher_id, address=dispatcher_address)

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """The address of a dispatcher, when it is there. `TimeoutException` after so many seconds."""
        return str(self._ask("wait_for_dispatcher", wait_seconds=timeout, dispatcher_id=dispatcher_id, timeout=timeout))

    def register_worker_for_dispatcher(self, dispatcher_id: int, worker_id: int) -> None:
        """Announces a worker."""
        self._ask("register_worker", dispatcher_id=dispatcher_id, worker_id=worker_id)

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int, timeout: float) -> None:
        """Waits until all workers of a dispatcher are there. `TimeoutException` after so many seconds."""
        self._ask("wait_for_workers", wait_seconds=timeout, dispatcher_id=dispatcher_id, timeout=timeout)

    def shutdown(self) -> None:
        """Ends the service."""
        self._ask("shutdown")

    def wait_for_shutdown(self) -> None:
        """Waits until the service ends. `ConnectionError` if it is gone without a word."""
        self._ask("wait_for_shutdown", wait_seconds=None)

    def _ask(self, kind: str, wait_seconds: Optional[float] = 0.0, **arguments: Any) -> Any:
        failures = []
        for candidate in list(self._candidates):
            try:
                connection = socket.create_connection(candidate, timeout=_HANDSHAKE_SECONDS)
            except OSError as error:
                failures.append(f"{candidate[0]}:{candidate[1]}: {error}")
                continue
            with connection:
                try:
                    reply = self._exchange(connection, {"kind": kind, **arguments}, wait_seconds)
                except (OSError, ValueError) as error:
                    failures.append(f"{candidate[0]}:{candidate[1]}: {error}")
                    continue
                self._candidates = [candidate]
                self.local_address = connection.getsockname()[0]
            if "error" in reply:
                raise _ERRORS.get(str(reply["error"]), RuntimeError)(reply.get("message"))
            return reply.get("value")
        raise ConnectionError(
            f"The compute service did not answer {kind}: {'; '.join(failures) or 'it has no address'}"
        )

    def _exchange(
        self, connection: socket.socket, request: dict[str, Any], wait_seconds: Optional[float]
    ) -> dict[str, Any]:
        nonce = _receive_exactly(connection, _NONCE_BYTES)
        _send_frame(connection, self._key, _REQUEST, nonce, request)
        # A host that vanishes is noticed by keepalive, also where nothing bounds the wait.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.settimeout(None if wait_seconds is None else wait_seconds + _HANDSHAKE_SECONDS)
        return _receive_frame(connection, self._key, _REPLY, nonce)


def _interfaces() -> list[tuple[str, str]]:
    """Names and IPv4 addresses of the network interfaces that have one."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # It has none.
            found.append((name, socket.inet_ntoa(answer[20:24])))
    return found
