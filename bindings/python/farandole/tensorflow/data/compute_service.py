"""Input pipelines on other processes: a compute job runs TensorFlow's data service, a training job reads from it.

The compute job (`compute_worker`) has one or more *dispatchers* and several *workers* for each. A
`TfDataServiceConfig`, which it writes to a file, tells the training job where its registry is (`registry.py`) and with
which key. Dispatchers run in the compute job, or, with `dispatcher_side="training"`, in the training job: one for all
ranks, or one for each.

**Addresses.** TensorFlow announces its servers under `localhost`. Here they are announced under the address that the
host has on the way to the registry, so that the two jobs may be on different hosts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Optional

import tensorflow as tf

from farandole.tensorflow import mpi_ops
from farandole.tensorflow.data.registry import ComputeClient

__all__ = ["TfDataServiceConfig", "compute_worker_fn", "send_to_data_service", "tf_data_service"]

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TfDataServiceConfig:
    """Where a compute job is and how to talk to it.

    dispatchers: how many dispatchers there are.
    workers_per_dispatcher: how many workers each has.
    dispatcher_side: where dispatchers run: "compute" or "training".
    addresses: of the registry, by network interface.
    key: of the registry. Whoever has it may register; the file that `write` makes is readable by its owner only.
    timeout: seconds to wait for dispatchers and workers.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Mapping[str, Sequence[tuple[str, int]]]
    key: bytes
    timeout: int = 60

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """A client of the registry."""
        return ComputeClient(self.addresses, self.key, verbose=verbose)

    def to_dict(self) -> dict[str, Any]:
        """Everything, of types that JSON has."""
        return {**self.__dict__, "key": self.key.hex()}

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> "TfDataServiceConfig":
        """Undoes `to_dict`."""
        addresses = {nic: [(host, port) for host, port in pairs] for nic, pairs in config["addresses"].items()}
        return TfDataServiceConfig(
            dispatchers=config["dispatchers"],
            workers_per_dispatcher=config["workers_per_dispatcher"],
            dispatcher_side=config["dispatcher_side"],
            addresses=addresses,
            key=bytes.fromhex(config["key"]),
            timeout=config.get("timeout", 60),
        )

    def write(self, filename: str) -> None:
        """Writes a file for `read`. It appears under its name when it is complete."""
        path = Path(filename)
        with NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
            json.dump(self.to_dict(), file)
        os.rename(file.name, path)

    @staticmethod
    def read(filename: str, wait_for_file_creation: bool = False) -> "TfDataServiceConfig":
        """Reads what `write` wrote; waits for it without end if asked to."""
        while wait_for_file_creation and not os.path.exists(filename):
            time.sleep(0.2)
        with open(filename, encoding="utf-8") as file:
            return TfDataServiceConfig.from_dict(json.load(file))


class _Dispatcher:
    """A dispatcher in this process, announced under an address that other hosts can reach."""

    def __init__(self, compute: ComputeClient, number: int) -> None:
        self._server = tf.data.experimental.service.DispatchServer()
        protocol, _, address = self._server.target.partition("://")
        port = address.rpartition(":")[2]
        # The first request tells which address this host has on the way to the registry.
        compute.probe()
        compute.register_dispatcher(number, f"{protocol}://{compute.local_address}:{port}")
        _log.info("dispatcher %d listens at %s:%s", number, compute.local_address, port)

    def stop(self) -> None:
        """Ends it. TensorFlow has no public way."""
        self._server._stop()
        self._server.join()


@contextlib.contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """The address of the dispatcher for a rank of the training job, while the block runs. Waits until it and its
    workers are there."""
    compute = compute_config.compute_client(verbose=2)
    dispatcher = None
    if compute_config.dispatcher_side == "training" and (compute_config.dispatchers > 1 or rank == 0):
        dispatcher = _Dispatcher(compute, rank)
    try:
        number = rank if compute_config.dispatchers > 1 else 0
        address = compute.wait_for_dispatcher_registration(number, compute_config.timeout)
        compute.wait_for_dispatcher_worker_registration(number, compute_config.timeout)
        yield address
    finally:
        if dispatcher is not None:
            dispatcher.stop()


def send_to_data_service(
    dataset: Any,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: Optional[int] = None,
    processing_mode: str = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
) -> Any:
    """The dataset, computed by the workers of a compute job that has the dispatchers. Also a method of
    `tf.data.Dataset`.

    Arguments:
        dataset: what to compute.
        compute_config: the compute job.
        rank, size: of this process in the training job.
        processing_mode: as for `tf.data.experimental.service.distribute`.
        reuse_dataset: ranks share one pass over the dataset, so that each gets a part of it.
        round_robin: with `reuse_dataset`, ranks get elements in turn.
    """
    if compute_config.dispatcher_side == "training":
        raise RuntimeError("training side dispatcher not supported, use tf_data_service context manager instead")
    with tf_data_service(compute_config, rank) as address:
        return dataset.apply(
            tf.data.experimental.service.distribute(
                processing_mode=processing_mode,
                service=address,
                job_name="job" if reuse_dataset else None,
                consumer_index=rank if reuse_dataset and round_robin else None,
                num_consumers=size if reuse_dataset and round_robin else None,
            )
        )


tf.data.Dataset.send_to_data_service = send_to_data_service


def compute_worker_fn(compute_config: TfDataServiceConfig) -> None:
    """What every rank of a compute job runs: a worker and, on some, a dispatcher, until the registry is shut down."""
    mpi_ops.init()
    index = mpi_ops.rank()
    number = index // compute_config.workers_per_dispatcher
    compute = compute_config.compute_client(verbose=2)
    dispatcher = None
    if compute_config.dispatcher_side == "compute" and index % compute_config.workers_per_dispatcher == 0:
        dispatcher = _Dispatcher(compute, number)
    address = compute.wait_for_dispatcher_registration(number, compute_config.timeout)
    worker = tf.data.experimental.service.WorkerServer(
        tf.data.experimental.service.WorkerConfig(
            dispatcher_address=address.split("://")[1],
            worker_address=f"{compute.local_address}:%port%",
            heartbeat_interval_ms=1000,
            dispatcher_timeout_ms=compute_config.timeout * 1000,
        )
    )
    worker.start()
    compute.register_worker_for_dispatcher(number, index)
    _log.info("worker %d serves dispatcher %d", index, number)
    try:
        compute.wait_for_shutdown()
    finally:
        worker._stop()
        worker.join()
        if dispatcher is not None:
            dispatcher.stop()
