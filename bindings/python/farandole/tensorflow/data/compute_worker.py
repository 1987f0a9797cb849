"""The compute job: `farandole run -np 4 python -m farandole.tensorflow.data.compute_worker CONFIGFILE`.

Rank 0 has the registry and writes the file that the training job reads. The job ends when somebody shuts the registry
down (`TfDataServiceConfig.compute_client().shutdown()`).
"""

from __future__ import annotations

import argparse
import secrets

from farandole.objects import broadcast_object
from farandole.tensorflow import mpi_ops
from farandole.tensorflow.data.compute_service import TfDataServiceConfig, compute_worker_fn
from farandole.tensorflow.data.registry import ComputeService

__all__ = ["main"]

_KEY_BYTES = 32


def main(dispatchers: int, dispatcher_side: str, configfile: str, timeout: int) -> None:
    """Runs this rank of a compute job. The arguments are those of the command."""
    if dispatcher_side not in ("compute", "training"):
        raise ValueError(f"Dispatchers run on the 'compute' or the 'training' side, not {dispatcher_side!r}")
    mpi_ops.init()
    size = mpi_ops.size()
    if size % dispatchers:
        raise ValueError(f"Number of processes ({size}) must be a multiple of number of dispatchers ({dispatchers}).")
    service = None
    config = None
    try:
        if mpi_ops.rank() == 0:
            key = secrets.token_bytes(_KEY_BYTES)
            service = ComputeService(dispatchers, size // dispatchers, key)
            config = TfDataServiceConfig(
                dispatchers=dispatchers,
                workers_per_dispatcher=size // dispatchers,
                dispatcher_side=dispatcher_side,
                addresses=service.addresses(),
                key=key,
                timeout=timeout,
            )
            config.write(configfile)
        config = broadcast_object(config, name="TfDataServiceConfig")
        compute_worker_fn(config)
    finally:
        if service is not None:
            service.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Runs input pipelines for a training job.")
    parser.add_argument("configfile", help="where to write the configuration of this job")
    parser.add_argument("--dispatchers", type=int, default=1, help="how many dispatchers there are (default: 1)")
    parser.add_argument(
        "--dispatcher-side", default="compute", help="where they run: compute (default) or training, the job that reads"
    )
    parser.add_argument(
        "--timeout", type=int, default=60, help="seconds to wait for dispatchers and workers (default: 60)"
    )
    given = parser.parse_args()
    main(given.dispatchers, given.dispatcher_side, given.configfile, given.timeout)
