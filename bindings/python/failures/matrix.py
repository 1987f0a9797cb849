"""Everyday failures in every front end and under every launcher: is the right rank named, and the right cause?

`cargo xtask failures [--rounds 5] [--jobs 2] [--only WORD…]` runs each failure of `EXPECTED` in each program of this
folder under each launcher that starts it. Under `farandole run` the last line on standard error has to name the rank
and the cause. Where the launcher is not ours, the output of the rank that did not fail has to. No rank may end by a
signal that the failure did not send, and no job may outlast `DEADLINE_SECONDS`.

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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

FOLDER = pathlib.Path(__file__).parent
COMMAND = os.environ.get("FARANDOLE_COMMAND", "farandole")
DEADLINE_SECONDS = 120

# Stalls end jobs soon. A rank that is late by this much on a busy machine would be taken for a stall.
STALL = {"FARANDOLE_STALL_CHECK_TIME_SECONDS": "4", "FARANDOLE_STALL_SHUTDOWN_TIME_SECONDS": "8"}

# Runs a rank. The output goes to a file per rank where `FAILURE_LOGS` is set. In the failure "another version" rank 1
# runs an earlier build: `OTHER_PACKAGE` is its Python package, `OTHER_PROGRAM` its program in Rust. In "wrong address"
# it looks for torch's store and for the other ranks at an address of this machine at which nothing listens.
RANK_SCRIPT = """
rank="${FARANDOLE_RANK:-${RANK:-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}}}"
case "$rank $FAILURE" in
"1 another version")
    export PYTHONPATH="$OTHER_PACKAGE:$PYTHONPATH"
    [ -z "$OTHER_PROGRAM" ] || set -- "$OTHER_PROGRAM" ;;
"1 wrong address") export MASTER_ADDR=127.0.0.9 FARANDOLE_RENDEZVOUS=tcp:127.0.0.9:4711 ;;
esac
[ -z "$FAILURE_LOGS" ] || exec >"$FAILURE_FOLDER/$rank.log" 2>&1
exec "$@"
"""

# What the survivor's output has if a signal ended it: faulthandler's heading, the shell's and the C++ runtime's words.
ENDED_BY_A_SIGNAL = re.compile(r"Fatal Python error|Segmentation fault|core dumped|terminate called|panicked at")

# What launchers say if a signal ended rank 0, which survives all failures but "disk full".
RANK_0_BY_A_SIGNAL = re.compile(r"rank 0\b[^\n]{0,80}SIG(SEGV|ABRT|BUS|ILL)|rank +: 0 [^[]*?exitcode +: -(4|6|7|11) ")

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
    another launcher (`None`: the launcher ends it before it can know). Patterns by program, or by program and launcher
    ("rust, mpirun"), replace both.
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
        return self.by_program.get(f"{program}, {launcher}", self.by_program.get(program, general))


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

# What a survivor knows of a process in Rust that called `exit`: its connections closed, and no exit code.
CLOSED = [r"rank 1\b", "gone|closed"]

LEFT_EARLY = [r"rank 1 left .* 3 steps", "different numbers of batches"]

EXPECTED: dict[str, Expected] = {
    "exception": raised("a bad batch"),
    "logged exception": raised(r"a bad batch|exit code 1\b", by_program={"rust, mpirun": CLOSED}),
    "panic": raised("a bad batch", programs=["rust"]),
    "loader": raised("images/0017.jpg"),
    "callback": raised("the callback has failed", programs=PYTHON),
    "out of memory": raised("MemoryError", by_program={"rust": [r"rank 1\b", "SIGABRT|gone|exited|ended"]}),
    "exit 0": raised(r"exit code 0\b", by_program={"rust, mpirun": CLOSED}),
    "os._exit": Expected(
        [r"rank 1\b", r"exit code 3\b"],
        [r"rank +: 1\b|rank 1\b", r"gone|exited|ended|closed|exit code 3|exitcode +: 3"],
    ),
    "fewer batches": raised(
        r"exit code 0\b.*\b3 (steps|iterations)",
        # Where the process group is destroyed, or the world is dropped, the exit code is not known yet.
        by_program={program: LEFT_EARLY for program in ("rust, mpirun", "ddp, torchrun")},
    ),
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
    "extra collective": differ(r"[Rr]ank 1\b", "extra", by_program={"ddp": [r"rank 1\b", r"\[5\]|[Mm]ismatch|differ"]}),
    "other model": differ(
        r"[Rr]ank 1\b", r"4\.weight|dense_2|extra|parameters|\[2, 2\]", by_program={"ddp": ["rank 1"]}
    ),
    "frozen parameter": differ(r"[Rr]ank 1\b", r"0\.bias|dense|first|param"),
    "no broadcast": differ("parameters differ between ranks", programs=["torch", "keras", "jax"], code=0),
    "disk full": Expected([r"rank 0\b", NO_SPACE], [NO_SPACE]),
    "wrong address": Expected([r"rank 1\b", r"127\.0\.0\.9"], [r"rank 1 did not come|1/2|127\.0\.0\.9|FARANDOLE_KEY"]),
    "another version": Expected(
        [r"rank 1\b", "version"],
        [r"rank 1\b|1/2", "version|missing|clients joined|timed out"],
        # The other version knows another address of torch's store, so it never meets rank 0.
        by_program={"ddp, farandole run": [r"rank 1 .* did not come|rank 1 .*socket"]},
    ),
}


@dataclass
class Outcome:
    """How a job ended."""

    code: int | None
    judged: str
    output: str
    survivor: str

    def complaint(self, expected: Expected, patterns: list[str] | None) -> str | None:
        """What is wrong with it."""
        if self.code is None:
            return f"not over after {DEADLINE_SECONDS} s"
        if (self.code == 0) != (expected.code == 0):
            return f"exit code {self.code}"
        if ENDED_BY_A_SIGNAL.search(self.survivor) or RANK_0_BY_A_SIGNAL.search(self.output):
            return "a signal ended the survivor"
        missing = [pattern for pattern in patterns or [] if not re.search(pattern, self.judged, re.DOTALL)]
        return f"nothing fits {', '.join(missing)}" if missing else None


def words_of(program: str, rust_program: str) -> list[str]:
    return [rust_program] if program == "rust" else [sys.executable, str(FOLDER / f"{program}_program.py")]


def words_with(launcher: str, program: list[str]) -> list[str]:
    rank = ["sh", "-c", RANK_SCRIPT, "sh", *program]
    if launcher == "farandole run":
        return [COMMAND, "run", "-np", "2", *rank]
    if launcher == "torchrun":
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
        return [*torchrun, *rank]
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", *rank]


def environment(fault: str, folder: str, others: dict[str, str]) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OF_LAUNCHERS)}
    own = {"FAILURE": fault, "FAILURE_FOLDER": folder, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    # A trace of trouble goes to the folder that is removed.
    engine = {"FARANDOLE_TRACE_TROUBLE": folder, "FARANDOLE_START_TIMEOUT": "20", "PYTHONFAULTHANDLER": "1"}
    return {**clean, **own, **STALL, **engine, **others}


def run(launcher: str, program: list[str], fault: str, others: dict[str, str]) -> Outcome:
    """One job."""
    with tempfile.TemporaryDirectory(prefix="farandole-failure-") as folder:
        logged = {} if launcher == "farandole run" else {"FAILURE_LOGS": "1"}
        process = subprocess.Popen(
            words_with(launcher, program),
            env=environment(fault, folder, {**others, **logged}),
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
            return Outcome(None, "", output, "")
        survivor = "1" if fault == "disk full" else "0"
        if launcher == "farandole run":
            lines = output.rstrip().splitlines() or [""]
            said = output if fault == "no broadcast" else lines[-1]
            of_survivor = [line for line in lines if line.startswith(f"[{survivor}]")]
            return Outcome(process.returncode, said, output, "\n".join(of_survivor))
        logs = {path.stem: path.read_text(errors="replace") for path in sorted(pathlib.Path(folder).glob("*.log"))}
        whole = output + "".join(f"--- rank {rank}\n{log}" for rank, log in logs.items())
        said = logs.get(survivor, "")
        # A survivor that the launcher ended at once has no error of its own: then the whole output is judged.
        return Outcome(process.returncode, said if "Error" in said else whole, whole, said)


def cases(only: list[str]) -> Iterator[tuple[str, str, str]]:
    for fault, expected in EXPECTED.items():
        for launcher, programs in LAUNCHERS.items():
            for program in programs:
                name = f"{fault}, {program}, {launcher}"
                fits = program in expected.programs and launcher in expected.launchers
                if fits and all(word in name for word in only):
                    yield fault, program, launcher


def judge(case: tuple[str, str, str], wish: argparse.Namespace) -> tuple[str | None, Outcome]:
    """Runs a case once: what is wrong with how it ended, and how it ended."""
    fault, program, launcher = case
    others = {"OTHER_PACKAGE": wish.other_package, "OTHER_PROGRAM": wish.other_program if program == "rust" else ""}
    outcome = run(launcher, words_of(program, wish.rust_program), fault, others)
    expected = EXPECTED[fault]
    return outcome.complaint(expected, expected.patterns(launcher, program)), outcome


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs everyday failures and checks what is said of them.")
    parser.add_argument("--rust-program", required=True, help="the example `failures`")
    parser.add_argument("--other-package", required=True, help="folder of a package with another protocol")
    parser.add_argument("--other-program", required=True, help="a program in Rust with another protocol")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="jobs that run at the same time")
    parser.add_argument("--only", action="append", default=[], help="words of the cases: failure, program, launcher")
    parser.add_argument("--show", action="store_true", help="show the judged lines of cases that pass, too")
    wish = parser.parse_args()
    columns = [(program, launcher) for launcher, programs in LAUNCHERS.items() for program in programs]
    named: dict[tuple[str, str, str], int] = {}
    complaints = 0
    todo = [case for case in cases(wish.only) for _ in range(wish.rounds)]
    with ThreadPoolExecutor(wish.jobs) as pool:
        for case, (wrong, outcome) in zip(todo, pool.map(lambda case: judge(case, wish), todo)):
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
    print(f"\n{len(todo) - complaints} passed, {complaints} failed")
    sys.exit(complaints > 0)


if __name__ == "__main__":
    main()
