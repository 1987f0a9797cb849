"""Ranks on one GPU, each in Linux namespaces of its own as in a container: are sums in device memory right?

Each case starts a job of two ranks that run collectives on tensors of the GPU and compare every element with the
expected result. In the cases with `setarch -R` address space randomisation is off, so that all ranks have equal
addresses. `unshare` needs root. The script prints a row for each case and plane: `right`; `refused`, where ranks are in
different PID namespaces, `FARANDOLE_PLANE=own` asks for mappings and CUDA refuses them, with an error that names the
setting; or `FAILED`. Below it is the line that tells of a fallback or an error. It exits with 1 if a row failed.

    FARANDOLE_COMMAND=farandole python gpu_namespaces.py
"""

from __future__ import annotations

import os
import subprocess
import sys

_PID = ["--pid", "--fork", "--kill-child", "--mount-proc"]

CASES = {
    "shared": [],
    "PID": ["unshare", *_PID],
    "PID, equal addresses": ["unshare", *_PID, "setarch", "-R"],
    "IPC": ["unshare", "--ipc"],
    "mount": ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh"],
    "PID, IPC, mount": [
        *["unshare", *_PID, "--ipc", "--mount"],
        *["sh", "-c", 'mount -t tmpfs none /dev/shm && exec setarch -R "$@"', "sh"],
    ],
}
"""Words before the rank's program."""

PLANES = ["auto", "own", "staged"]

ROUNDS = 20
"""Of each collective: enough that the ranks learn the cycle and replay it."""


def rank() -> None:
    """The program of a rank."""
    import torch

    import farandole.torch as hvd

    hvd.init()
    torch.cuda.set_device(0)
    me, size = hvd.rank(), hvd.size()
    for elements in (1, 1000, 4_000_000):
        for turn in range(ROUNDS):
            mine = torch.full((elements,), float(me + 1 + turn), device="cuda")
            total = float(sum(other + 1 + turn for other in range(size)))
            handles = [hvd.allreduce_async(mine, op=hvd.Sum, name=f"{elements}.{part}") for part in range(3)]
            for handle in handles:
                assert bool((hvd.synchronize(handle) == total).all()), f"allreduce of {elements}, turn {turn}"
            gathered = hvd.allgather(mine, name=f"gather.{elements}")
            expected = torch.cat([torch.full((elements,), float(other + 1 + turn)) for other in range(size)])
            assert bool((gathered.cpu() == expected).all()), f"allgather of {elements}, turn {turn}"
    hvd.barrier()
    print(f"rank {me} in {os.readlink('/proc/self/ns/pid')} as process {os.getpid()}: all right", flush=True)
    hvd.shutdown()


def run(words: list[str], plane: str) -> tuple[str, str]:
    """The outcome, and the line that explains it."""
    command = [os.environ.get("FARANDOLE_COMMAND", "farandole"), "run", "-np", "2", *words]
    command += [sys.executable, os.path.abspath(__file__), "rank"]
    environment = dict(os.environ, FARANDOLE_PLANE=plane)
    try:
        ended = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=90
        )
    except subprocess.TimeoutExpired as expired:
        return "FAILED", f"no end within 90 s: {(expired.stdout or b'')[-500:]!r}"
    said = ended.stdout
    told = [line for line in said.splitlines() if "FARANDOLE_PLANE" in line] or said.splitlines()[-1:]
    if ended.returncode == 0 and said.count(": all right") == 2:
        return "right", told[0] if "FARANDOLE_PLANE" in told[0] else ""
    is_refusal = plane == "own" and "--pid" in words and "FARANDOLE_PLANE" in told[0]
    return "refused" if is_refusal else "FAILED", told[0]


def main() -> None:
    """Runs every case on every plane."""
    failed = 0
    for case, words in CASES.items():
        for plane in PLANES:
            outcome, told = run(words, plane)
            failed += outcome == "FAILED"
            print(f"{case:22} {plane:7} {outcome}", flush=True)
            if told:
                print(f"    {told}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    rank() if sys.argv[1:] == ["rank"] else main()
