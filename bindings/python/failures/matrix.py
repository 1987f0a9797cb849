"""Everyday failures in every front end and under every launcher: is the right rank named, and the right cause?

`cargo xtask failures [--rounds 5] [--only WORD…] [--write FILE]` runs each failure of `EXPECTED` in each program of
this folder under each launcher that starts it. Under `farandole run` the last line on standard error has to name the
rank and the cause. Where the launcher is not ours, the last lines of the rank that did not fail have to. No rank may
end by a signal that the failure did not send, and no job may outlast `DEADLINE_SECONDS`.

The table at the end has a cell for each program and launcher: in how many rounds the failure was named.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field

FOLDER = pathlib.Path(__file__).parent
COMMAND = os.environ.get("FARANDOLE_COMMAND", "farandole")
DEADLINE_SECONDS = 120

# Stalls end jobs soon. A rank that is late by this much on a busy machine would be taken for a stall.
STALL = {"FARANDOLE_STALL_CHECK_TIME_SECONDS": "4", "FARANDOLE_STALL_SHUTDOWN_TIME_SECONDS": "8"}

# Runs a rank with its output in a file of its own.
WITH_A_LOG = 'exec "$@" >"$FAILURE_FOLDER/${RANK:-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}}.log" 2>&1'

# Variables of launchers that this script may itself run under.
OF_LAUNCHERS = ("FARANDOLE_", "HOROVOD_", "OMPI_", "PMIX_", "PMI_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "MASTER_")

PROGRAMS = ["torch", "ddp", "keras", "jax", "rust"]

LAUNCHERS = {
    "farandole run": PROGRAMS,
    "torchrun": ["torch", "ddp"],
    "mpirun": ["torch", "keras", "jax", "rust"],
}


@dataclass
class Expected:
    """What has to be said of a failure.

    `last` are patterns for the last line of `farandole run`, `survivor` those for a rank that did not fail under
    another launcher (`None`: the launcher ends it before it can know). Patterns by program replace both.
    """

    last: list[str]
    survivor: list[str] | None
    programs: list[str] = field(default_factory=lambda: PROGRAMS)
    by_program: dict[str, list[str]] = field(default_factory=dict)
    launchers: list[str] = field(default_factory=lambda: list(LAUNCHERS))
    code: int | None = None

    def patterns(self, launcher: str, program: str) -> list[str] | None:
        if launcher != "farandole run" and self.survivor is None:
            return None
        general = self.last if launcher == "farandole run" else self.survivor
        return self.by_program.get(program, general)


def raised(words: str, **more: object) -> Expected:
    """Rank 1 has raised this."""
    return Expected([r"rank 1\b", words], [r"rank 1\b", words], **more)  # type: ignore[arg-type]


def ended_by(name: str) -> Expected:
    """Rank 1 was ended by a signal. Other ranks do not learn which from the kernel."""
    return Expected([r"rank 1\b", name], [r"rank 1\b", rf"{name}|gone|exited|ended|closed"])


def differ(*words: str, **more: object) -> Expected:
    """Ranks have made calls that do not fit together."""
    return Expected(list(words), list(words), **more)  # type: ignore[arg-type]


PYTHON = ["torch", "ddp", "keras", "jax"]
NAMED = ["torch", "keras", "jax", "rust"]

# Frameworks that write in C++ have words of their own.
NO_SPACE = "No space left|Errno 28|error 28|writ"

EXPECTED: dict[str, Expected] = {
    "exception": raised("a bad batch"),
    "logged exception": raised(r"a bad batch|exit code 1\b"),
    "panic": raised("a bad batch", programs=["rust"]),
    "loader": raised("images/0017.jpg"),
    "callback": raised("the callback has failed", programs=PYTHON),
    "out of memory": raised("MemoryError", by_program={"rust": [r"rank 1\b", "SIGABRT|gone|exited|ended"]}),
    "exit 0": raised(r"exit code 0\b"),
    "os._exit": Expected([r"rank 1\b", r"exit code 3\b"], [r"rank 1\b", r"gone|exited|ended|closed|exit code 3"]),
    "fewer batches": raised(r"exit code 0\b.*\b3 (steps|iterations)"),
    "import error": Expected([r"rank 1\b", r"exit code 1\b|ModuleNotFoundError"], None, programs=PYTHON),
    "exit before init": Expected([r"rank 1\b", r"exit code 4\b"], None),
    "killed": ended_by("SIGKILL"),
    "segmentation fault": ended_by("SIGSEGV"),
    "abort": ended_by("SIGABRT"),
    "terminated": ended_by("SIGTERM"),
    "stopped": Expected([r"rank 1\b", "silent|stopped|heartbeat"], [r"rank 1\b", "silent|stopped|heartbeat|stall"]),
    "endless loop": raised("stall|wait"),
    "other name": differ("accuracy", "loss", programs=NAMED),
    "other shape": differ("rank 0", "rank 1", r"\[2\]", r"\[3\]"),
    "other dtype": differ("rank 0", "rank 1", "(?i)int32", "(?i)float32"),
    "other root": differ("(?i)root", "rank 0", "rank 1", programs=NAMED),
    "extra collective": differ(r"rank 1\b", "extra", by_program={"ddp": [r"rank 1\b", r"\[5\]|[Mm]ismatch|differ"]}),
    "other model": differ(r"rank 1\b", r"4\.weight|dense_2|extra|parameters", by_program={"ddp": ["rank 1"]}),
    "frozen parameter": differ(r"rank 1\b", r"0\.bias|dense|first|parameters"),
    "no broadcast": differ("parameters differ between ranks", programs=["torch", "keras", "jax"], code=0),
    "disk full": Expected([r"rank 0\b", NO_SPACE], [NO_SPACE]),
    "wrong address": Expected([], [r"rank 1\b|1/2"], programs=["torch", "ddp"], launchers=["torchrun"]),
}


@dataclass
class Outcome:
    """How a job ended."""

    code: int | None
    judged: str
    output: str

    def complaint(self, expected: Expected, patterns: list[str] | None) -> str | None:
        """What is wrong with it."""
        if self.code is None:
            return f"not over after {DEADLINE_SECONDS} s"
        if (self.code == 0) != (expected.code == 0):
            return f"exit code {self.code}"
        missing = [pattern for pattern in patterns or [] if not re.search(pattern, self.judged, re.DOTALL)]
        return f"nothing fits {', '.join(missing)}" if missing else None


def words_of(program: str, rust_program: str) -> list[str]:
    return [rust_program] if program == "rust" else [sys.executable, str(FOLDER / f"{program}_program.py")]


def words_with(launcher: str, program: list[str]) -> list[str]:
    logged = ["sh", "-c", WITH_A_LOG, "sh", *program]
    if launcher == "farandole run":
        return [COMMAND, "run", "-np", "2", *program]
    if launcher == "torchrun":
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
        return [*torchrun, *logged]
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", *logged]


def environment(fault: str, folder: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OF_LAUNCHERS)}
    own = {"FAILURE": fault, "FAILURE_FOLDER": folder, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    # A trace of trouble goes to the folder that is removed.
    return {**clean, **own, **STALL, "FARANDOLE_TRACE_TROUBLE": folder, "FARANDOLE_START_TIMEOUT": "20"}


def run(launcher: str, program: list[str], fault: str) -> Outcome:
    """One job."""
    with tempfile.TemporaryDirectory(prefix="farandole-failure-") as folder:
        process = subprocess.Popen(
            words_with(launcher, program),
            env=environment(fault, folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return Outcome(None, "", output)
        if launcher == "farandole run":
            said = output if fault == "no broadcast" else output.rstrip().rpartition("\n")[2]
            return Outcome(process.returncode, said, output)
        logs = {path.stem: path.read_text(errors="replace") for path in sorted(pathlib.Path(folder).glob("*.log"))}
        whole = output + "".join(f"--- rank {rank}\n{log}" for rank, log in logs.items())
        survivor = logs.get("1" if fault == "disk full" else "0", "")
        return Outcome(process.returncode, survivor, whole)


def cases(only: list[str]) -> Iterator[tuple[str, str, str]]:
    for fault, expected in EXPECTED.items():
        for launcher, programs in LAUNCHERS.items():
            for program in programs:
                name = f"{fault}, {program}, {launcher}"
                fits = program in expected.programs and launcher in expected.launchers
                if fits and all(word in name for word in only):
                    yield fault, program, launcher


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs everyday failures and checks what is said of them.")
    parser.add_argument("--rust-program", required=True, help="the example `failures`")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", default=[], help="words of the cases: failure, program, launcher")
    parser.add_argument("--show", action="store_true", help="show the judged lines of cases that pass, too")
    wish = parser.parse_args()
    columns = [(program, launcher) for launcher, programs in LAUNCHERS.items() for program in programs]
    named: dict[tuple[str, str, str], int] = {}
    complaints = 0
    for fault, program, launcher in cases(wish.only):
        expected = EXPECTED[fault]
        for _ in range(wish.rounds):
            outcome = run(launcher, words_of(program, wish.rust_program), fault)
            wrong = outcome.complaint(expected, expected.patterns(launcher, program))
            case = (fault, program, launcher)
            named[case] = named.get(case, 0) + (wrong is None)
            if wrong:
                complaints += 1
                print(f"\n### {', '.join(case)}: {wrong}\n{outcome.output[-6000:]}", flush=True)
            elif wish.show:
                print(f"\n### {', '.join(case)}\n{outcome.judged[-1500:]}", flush=True)
    print("\n| failure | " + " | ".join(f"{program}, {launcher}" for program, launcher in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for fault in EXPECTED:
        cells = [named.get((fault, program, launcher)) for program, launcher in columns]
        if any(cell is not None for cell in cells):
            row = ["" if cell is None else f"{cell}/{wish.rounds}" for cell in cells]
            print(f"| {fault} | " + " | ".join(row) + " |")
    total = len(named) * wish.rounds
    print(f"\n{total - complaints} passed, {complaints} failed")
    sys.exit(complaints > 0)


if __name__ == "__main__":
    main()
