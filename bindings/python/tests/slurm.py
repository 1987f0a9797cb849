"""A Slurm cluster of this host alone, for tests: `munged`, `slurmctld` and `slurmd` with a configuration and ports of
their own.

Nothing of a Slurm that this machine may run is touched. The daemons end with the `with` block, and with the test's
process if that is killed. They start tasks of other users in general, so they need root.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
from collections.abc import Iterator
from waiting import wait_for

READY_SECONDS = 45


@contextlib.contextmanager
def cluster(folder: pathlib.Path) -> Iterator[dict[str, str]]:
    """Starts the daemons; gives the variables by which `srun` finds them."""
    variables = {"SLURM_CONF": str(folder / "slurm.conf")}
    daemons: list[subprocess.Popen[bytes]] = []
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(256))
    (folder / "munge.key").chmod(0o600)
    (folder / "slurm.conf").write_text(_configuration(folder))
    munge = [f"--{what}-file={folder}/munge.{what}" for what in ("key", "pid", "log", "seed")]
    try:
        daemons.append(
            _daemon(folder, ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *munge])
        )
        _wait_until(folder, (folder / "munge.socket").exists)
        daemons.append(_daemon(folder, ["slurmctld", "-D", "-i"], variables))
        daemons.append(_daemon(folder, ["slurmd", "-D"], variables))
        _wait_until(folder, lambda: _is_idle(variables))
        yield variables
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _daemon(folder: pathlib.Path, words: list[str], variables: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    # Debian keeps daemons where ordinary users' paths do not lead.
    environment = dict(os.environ, PATH=f"{os.environ['PATH']}:/usr/sbin:/sbin", **(variables or {}))
    with open(folder / f"{words[0]}.out", "wb") as log:
        words = ["setpriv", "--pdeathsig", "KILL", *words]
        return subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _is_idle(variables: dict[str, str]) -> bool:
    words = ["sinfo", "--noheader", "--format=%t"]
    asked = subprocess.run(words, env=dict(os.environ, **variables), capture_output=True, text=True, timeout=30)
    return asked.stdout.strip() == "idle"


def _wait_until(folder: pathlib.Path, ready) -> None:
    try:
        wait_for("the cluster", ready, READY_SECONDS)
    except AssertionError as error:
        logs = "\n".join(f"--- {log.name}\n{log.read_text()}" for log in folder.glob("*.out"))
        raise AssertionError(f"the cluster does not come up (cargo xtask ci installs Slurm):\n{logs}") from error


def _configuration(folder: pathlib.Path) -> str:
    host = socket.gethostname().split(".")[0]
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        controller, node = first.getsockname()[1], second.getsockname()[1]
    # Without resource limits and accounting, tasks need no control groups, which a container may not have.
    return f"""ClusterName=farandole
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""
