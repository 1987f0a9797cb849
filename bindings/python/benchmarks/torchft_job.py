"""A job of torchft's for `elastic_recovery.py`: a lighthouse, and so many workers, each started again when it ends.

    python torchft_job.py RANKS FOLDER

torchft has no launcher of its own for that; whoever uses it has a scheduler. The lighthouse is tuned: by default it
takes five seconds to miss somebody, and a minute to go on without somebody who is late.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from elastic_job import WORKER
from torchft.coordination import LighthouseServer

HEARTBEAT_TIMEOUT_MS = 500
"""As much as `--heartbeat-timeout` of farandole's jobs."""


def main() -> None:
    ranks, folder = int(sys.argv[1]), sys.argv[2]
    lighthouse = LighthouseServer(
        bind="[::]:0",
        min_replicas=1,
        join_timeout_ms=100,
        quorum_tick_ms=20,
        heartbeat_timeout_ms=HEARTBEAT_TIMEOUT_MS,
    )
    environment = dict(os.environ, TORCHFT_LIGHTHOUSE=lighthouse.address())
    words = [sys.executable, str(WORKER), "torchft", folder]
    workers: list[subprocess.Popen[bytes]] = []
    while True:
        workers = [worker for worker in workers if worker.poll() is None]
        while len(workers) < ranks:
            workers.append(subprocess.Popen(words, env=environment))
        time.sleep(0.01)


if __name__ == "__main__":
    main()
