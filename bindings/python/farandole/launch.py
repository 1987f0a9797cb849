"""`farandole.run`: calls a function in the ranks of a new job and returns what each rank returned.

The job is started by the command `farandole run`, which gets the function in a file and leaves results in a folder;
both are of this user alone and are gone when `run` returns. Between hosts they travel inside the launcher's encrypted
channel, so nothing is unpickled that has not come from a holder of the job's key. Ranks run `farandole._task`.

The signature is Horovod's. Elastic jobs and MPI are refused in words, as the command refuses them.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import site
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["RankFailed", "run"]

# What the launcher may take to end a job that was interrupted: its grace period of 5 s, and as long again to clear up.
INTERRUPTED_SECONDS = 15.0


class RankFailed(RuntimeError):
    """A rank of `farandole.run` has failed: which one, why, and its traceback if its function raised something.

    What the function raised is the cause (`__cause__`), if it could be sent here.
    """

    def __init__(self, message: str, rank: int | None, remote_traceback: str | None = None) -> None:
        super().__init__(message)
        self.rank = rank
        self.remote_traceback = remote_traceback


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | os.PathLike[str] | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | os.PathLike[str] | None = None,
    disable_cache: bool | None = None,
    output_filename: str | os.PathLike[str] | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Sequence[str] | str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls `func(*args, **kwargs)` in `num_proc` ranks and returns what each returned, in the order of ranks.

    `func` and its arguments are pickled by cloudpickle, so lambdas and functions of a notebook will do. `hosts` is what
    `-H` of the command takes (`"h1:2,h2:4"`), `hostfile` a file of hosts; without them all ranks run here. `executable`
    is the Python of the ranks, this one by default. What ranks print is printed here, with their number before it.

    Raises `RankFailed` with the remote traceback if `func` raised something in a rank, or with the launcher's last line
    if a rank or the launcher failed otherwise. `KeyboardInterrupt` ends the job.
    """
    if np is not None:
        num_proc = _renamed("np", "num_proc", np)
    if min_np is not None:
        min_num_proc = _renamed("min_np", "min_num_proc", min_np)
    if max_np is not None:
        max_num_proc = _renamed("max_np", "max_num_proc", max_np)
    if network_interface is not None:
        network_interfaces = _renamed("network_interface", "network_interfaces", network_interface)
    if hosts is not None and hostfile is not None:
        raise ValueError("Argument hosts and hostfile only allow one provided.")
    if use_gloo and use_mpi:
        raise ValueError("Argument use_gloo and use_mpi only allow one set True.")
    _refuse_elastic(
        min_num_proc=min_num_proc,
        max_num_proc=max_num_proc,
        slots=slots,
        reset_limit=reset_limit,
        cooldown_range=cooldown_range,
        host_discovery_script=host_discovery_script,
    )
    if use_mpi or mpi_args is not None:
        raise ValueError(
            "use_mpi and mpi_args: farandole starts ranks itself; to have MPI start them, run a script under mpirun"
        )
    if isinstance(network_interfaces, str):
        network_interfaces = network_interfaces.split(",")
    flags = _flags(
        ("--hosts", hosts),
        ("--hostfile", hostfile),
        ("--start-timeout", start_timeout),
        ("--ssh-port", ssh_port),
        ("--ssh-identity-file", ssh_identity_file),
        ("--output-filename", output_filename),
        ("--network-interface", ",".join(network_interfaces) if network_interfaces else None),
    )
    flags += ["--verbose"] if verbose else []
    # `disable_cache` is Horovod's way to have hosts checked anew. Here they are checked every time.
    del disable_cache
    job = _Job(["-np", str(num_proc), *flags], executable)
    return job.run(_pickled(func, tuple(args), dict(kwargs or {})), num_proc)


def _renamed(old: str, new: str, value: Any) -> Any:
    warnings.warn(f"{old} is deprecated, use {new} instead", DeprecationWarning, stacklevel=3)
    return value


def _refuse_elastic(**given: Any) -> None:
    named = [name for name, value in given.items() if value is not None]
    if named:
        raise ValueError(
            f"{', '.join(named)}: a function cannot be an elastic job; give a fixed number of ranks by num_proc, and "
            "hosts by hosts or hostfile"
        )


def _flags(*pairs: tuple[str, Any]) -> list[str]:
    return [f"{flag}={value}" for flag, value in pairs if value is not None]


def _pickled(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    try:
        import cloudpickle
    except ImportError as error:
        raise ImportError("farandole.run sends functions by cloudpickle: pip install cloudpickle") from error
    return pickle.dumps(_own_folders()) + cloudpickle.dumps((func, args, kwargs), protocol=pickle.HIGHEST_PROTOCOL)


def _own_folders() -> list[str]:
    """Folders that this process imports from and another Python may not: the script's own, and what was added."""
    installed = tuple({sys.prefix, sys.base_prefix, sys.exec_prefix, site.getusersitepackages()})
    folders = [os.path.abspath(folder) for folder in sys.path]
    return [folder for folder in folders if not folder.startswith(installed)]


def command() -> str:
    """The command `farandole`: the one that a variable names, that was installed with this package, or of the path."""
    # Read here and not by the settings of `_native`: whoever only starts jobs does not load the engine.
    named = os.environ.get("FARANDOLE_COMMAND")
    if named:
        return named
    scripts = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", "posix_user")]
    for folder in [os.path.dirname(sys.executable), *scripts]:
        found = shutil.which("farandole", path=folder)
        if found:
            return found
    found = shutil.which("farandole")
    if not found:
        raise FileNotFoundError(
            f"the command farandole is neither beside {sys.executable} nor on the path; FARANDOLE_COMMAND can name it"
        )
    return found


class _Job:
    """One job of the command, from its start to its results."""

    def __init__(self, flags: list[str], executable: str | None) -> None:
        self.flags = flags
        self.python = executable or sys.executable

    def run(self, task: bytes, ranks: int) -> list[Any]:
        with tempfile.TemporaryDirectory(prefix="farandole-run-") as place:
            folder = Path(place)
            (folder / "task").write_bytes(task)
            (folder / "results").mkdir()
            code = self._launch(folder)
            if code != 0:
                raise _failure(folder / "results", code)
            return [_value(folder / "results" / f"rank.{rank}", rank) for rank in range(ranks)]

    def _launch(self, folder: Path) -> int:
        words = [command(), "run", "--task", str(folder / "task"), "--results", str(folder / "results")]
        words += ["--caller", str(os.getpid()), *self.flags, "--", self.python, "-m", "farandole._task"]
        # In a session of its own: Ctrl-C at the terminal comes to this process, which passes it on once.
        process = subprocess.Popen(words, env=_environment(), stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            return process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(INTERRUPTED_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            raise


def _environment() -> dict[str, str]:
    """This process's environment, in which ranks find this package even if it is not installed."""
    environment = dict(os.environ)
    package = str(Path(__file__).resolve().parent.parent)
    if not package.startswith((sys.prefix, site.getusersitepackages())):
        folders = [package, environment.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(folder for folder in folders if folder)
    return environment


def _value(path: Path, rank: int) -> Any:
    try:
        with path.open("rb") as file:
            file.read(1)
            return pickle.load(file)
    except FileNotFoundError:
        message = f"rank {rank} ended well, but its function did not return: did it call sys.exit or os._exit?"
        raise RankFailed(message, rank) from None
    except Exception as error:
        raise RankFailed(f"what rank {rank} returned cannot be read here: {error}", rank) from error


def _failure(results: Path, code: int) -> RankFailed:
    """Why the job failed: what was raised in the rank that failed first, or what the launcher says."""
    try:
        first, words = (results / "failure").read_text().split("\n", 1)
    except (OSError, ValueError):
        return RankFailed(f"the launcher ended with exit code {code}", None)
    rank = int(first) if first.isdigit() else None
    raised = _raised(results / f"rank.{rank}") if rank is not None else None
    if raised is None:
        return RankFailed(words.strip(), rank)
    summary, lines, error = raised
    failure = RankFailed(f"rank {rank} raised {summary}\n\nTraceback of rank {rank}:\n{lines}", rank, lines)
    failure.__cause__ = error
    return failure


def _raised(path: Path) -> tuple[str, str, Exception | None] | None:
    """What a rank's function has raised, if that is how it failed. A result that is cut off says nothing."""
    try:
        with path.open("rb") as file:
            if file.read(1) != b"E":
                return None
            summary, lines, error = pickle.load(file)
            return summary, lines, error
    except Exception:
        return None
