"""The data service: a registry that listens to those with its key only, and datasets that other processes compute."""

import hmac
import os
import secrets
import socket
import struct
import threading
from pathlib import Path

import pytest
import tensorflow as tf
from waiting import wait_for

import farandole.tensorflow as hvd
from farandole.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service
from farandole.tensorflow.data.compute_worker import main
from farandole.tensorflow.data.registry import ComputeClient, ComputeService, TimeoutException

pytestmark = pytest.mark.usefixtures("job")

KEY = secrets.token_bytes(32)


@pytest.fixture
def service():
    service = ComputeService(2, 2, KEY)
    yield service
    service.shutdown()


def in_thread(function: object, *args: object) -> threading.Thread:
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def test_those_who_wait_get_what_others_register(service: ComputeService) -> None:
    client = ComputeClient(service.addresses(), KEY)
    found = []
    waiting = in_thread(lambda: found.append(client.wait_for_dispatcher_registration(1, 10)))
    client.register_dispatcher(1, "grpc://localhost:10")
    client.register_dispatcher(1, "grpc://localhost:10")
    waiting.join(10)
    assert found == ["grpc://localhost:10"]
    for worker in (2, 3):
        client.register_worker_for_dispatcher(1, worker)
    client.wait_for_dispatcher_worker_registration(1, 10)
    with pytest.raises(TimeoutException, match="workers for dispatcher 0"):
        client.wait_for_dispatcher_worker_registration(0, 0.05)
    with pytest.raises(TimeoutException, match="dispatcher 0"):
        client.wait_for_dispatcher_registration(0, 0.05)
    with pytest.raises(ValueError, match="already been registered"):
        client.register_dispatcher(1, "grpc://localhost:11")
    for number in (-1, 2):
        with pytest.raises(IndexError):
            client.register_dispatcher(number, "grpc://localhost:11")


def test_a_shutdown_reaches_those_who_wait_for_it(service: ComputeService) -> None:
    client = ComputeClient(service.addresses(), KEY)
    ended = []
    waiting = [in_thread(lambda: ended.append(client.wait_for_shutdown())) for _ in range(3)]
    wait_for("three that wait", lambda: service._server._active == 3)
    client.shutdown()
    for thread in waiting:
        thread.join(60)
    assert ended == [None] * 3
    service.shutdown()
    with pytest.raises(ConnectionError, match="did not answer register_dispatcher"):
        client.register_dispatcher(0, "grpc://localhost:10")


def test_strangers_are_not_listened_to(service: ComputeService) -> None:
    with pytest.raises(ConnectionError, match="did not answer"):
        ComputeClient(service.addresses(), secrets.token_bytes(32)).register_dispatcher(0, "grpc://stranger:1")
    port = next(iter(service.addresses().values()))[0][1]
    frames = [
        struct.pack(">I", 2**31),  # A length that would fill the memory.
        struct.pack(">I", 2) + bytes(32) + b"{}",  # No code.
        b"GET / HTTP/1.1\r\nHost: somebody-who-took-this-for-a-web-server\r\n\r\n",
    ]
    for frame in frames:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.recv(32)
            connection.sendall(frame)
            try:
                assert connection.recv(1) == b""
            except ConnectionResetError:
                pass
    client = ComputeClient(service.addresses(), KEY)
    with pytest.raises(TimeoutException):
        client.wait_for_dispatcher_registration(0, 0.01)


def test_an_old_frame_does_not_count_again(service: ComputeService) -> None:
    """Whoever has overheard a request cannot make it: its code covers the nonce of another connection."""
    [(_, port)] = service.addresses()["lo"]
    payload = b'{"kind": "register_dispatcher", "dispatcher_id": 0, "address": "grpc://localhost:1"}'

    def request(nonce: bytes) -> bytes:
        return struct.pack(">I", len(payload)) + hmac.digest(KEY, b"request" + nonce + payload, "sha256") + payload

    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        frame = request(connection.recv(32))
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.recv(32)
        connection.sendall(frame)
        assert connection.recv(1) == b""
    with pytest.raises(TimeoutException):
        ComputeClient(service.addresses(), KEY).wait_for_dispatcher_registration(0, 0.01)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request(connection.recv(32)))
        assert connection.recv(4) != b""


def test_a_configuration_survives_its_file(tmp_path: Path) -> None:
    config = TfDataServiceConfig(1, 2, "compute", {"lo": [("127.0.0.1", 5)]}, KEY, timeout=7)
    config.write(str(tmp_path / "config"))
    assert TfDataServiceConfig.read(str(tmp_path / "config"), wait_for_file_creation=True) == config
    assert os.stat(tmp_path / "config").st_mode & 0o077 == 0  # The key is in it.


@pytest.mark.parametrize("side, dispatchers", [("compute", 1), ("training", 1), ("compute", 2)])
def test_datasets_come_from_the_workers(side: str, dispatchers: int, tmp_path: Path) -> None:
    path = hvd.broadcast_object(str(tmp_path / "config"))
    workers = in_thread(main, dispatchers, side, path, 20)
    config = TfDataServiceConfig.read(path, wait_for_file_creation=True)
    # With several dispatchers, each rank of the training job has one; more ranks than dispatchers share nothing.
    reads = dispatchers == 1 or hvd.rank() < dispatchers
    received = []
    if reads:
        dataset = tf.data.Dataset.range(32).map(lambda number: number * 2).batch(4)
        if side == "compute":
            dataset = dataset.send_to_data_service(config, hvd.rank(), hvd.size(), processing_mode="distributed_epoch")
            received = [int(number) for batch in dataset for number in batch]
            hvd.allgather_object(None, name="read")
        else:
            with tf_data_service(config, hvd.rank()) as address:
                service = tf.data.experimental.service.distribute("distributed_epoch", service=address)
                received = [int(number) for batch in dataset.apply(service) for number in batch]
                hvd.allgather_object(None, name="read")
            with pytest.raises(RuntimeError, match="training side dispatcher"):
                dataset.send_to_data_service(config, hvd.rank())
        assert sorted(received) == [2 * number for number in range(32)]
    else:
        hvd.allgather_object(None, name="read")
    if hvd.rank() == 0:
        config.compute_client().shutdown()
    workers.join(30)
    assert not workers.is_alive()
