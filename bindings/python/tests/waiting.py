"""Time in tests: waits for a condition, and time that passes as a test's input.

No test asserts how long something takes, because a machine may be busy: a test waits for a condition, and its deadline
only ends a hang. `cargo xtask tidy` refuses clocks and sleeps in tests outside of this module and of tests with the
marker `alone`.
"""

from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

# Only a hang takes longer.
PATIENCE_SECONDS = 60.0

# How often conditions are looked at. Short against everything that tests wait for.
INTERVAL_SECONDS = 0.002


def wait_for(what: str, condition: Callable[[], Found], seconds: float = PATIENCE_SECONDS) -> Found:
    """Waits until `condition` gives something that is true, and returns it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(INTERVAL_SECONDS)
    return found


def lapse(what: str, seconds: float) -> None:
    """Lets time pass because it is the test's input: `what` says who is late, busy or stopped, or might do what it must
    not. The test must hold however much longer it takes, and nothing may have to happen meanwhile."""
    assert what, "say whose time passes"
    time.sleep(seconds)


def wait_until_asleep(thread: threading.Thread) -> None:
    """Waits until a thread of this process sleeps in the kernel, as one does that waits for something. It may sleep for
    a moment for another reason before: then the test acts earlier, and what it asserts must hold all the same."""
    wait_for("a thread that has started", lambda: thread.native_id is not None)
    stat = pathlib.Path(f"/proc/self/task/{thread.native_id}/stat")
    # The name stands in parentheses before the state, and may hold anything.
    wait_for("a thread that waits", lambda: stat.read_text().rpartition(")")[2].startswith(" S"))
