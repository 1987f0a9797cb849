"""`horovod.runner.util.threads`: functions that run others in threads, for scripts and tests that import them.

Farandole itself uses none of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def _check_args(args: Any) -> None:
    if not isinstance(args, tuple):
        raise ValueError(f"args must be a tuple, not {type(args)}, for a single argument use (arg,)")


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Starts `target` in a thread and returns the thread; `silent` swallows what it raises."""
    _check_args(args)

    def quietly(*arguments: Any) -> None:
        try:
            target(*arguments)
        except Exception:
            pass

    thread = threading.Thread(target=quietly if silent else target, args=args, name=name, daemon=daemon)
    thread.start()
    return thread


def on_event(
    event: threading.Event,
    func: Callable[..., Any],
    args: tuple[Any, ...] = (),
    stop: threading.Event | None = None,
    check_stop_interval_s: float = 1.0,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Calls `func` in a thread when `event` is set, unless `stop` is set before it."""
    if event is None:
        raise ValueError("Event must not be None")
    _check_args(args)
    if stop is None and not daemon:
        raise ValueError("Stop event must be given for non-daemon event thread")

    def wait_and_call() -> None:
        while not event.wait(timeout=check_stop_interval_s):
            if stop is not None and stop.is_set():
                return
        if stop is None or not stop.is_set():
            func(*args)

    return in_thread(wait_and_call, daemon=daemon, silent=silent)


def execute_function_multithreaded(
    fn: Callable[..., Any],
    args_list: Sequence[Sequence[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> dict[int, Any] | None:
    """Calls `fn` once for each entry of `args_list`, in threads.

    Returns a dictionary from the number of the entry to its result, or None at once where it shall not wait.
    """
    if not args_list:
        return {} if block_until_all_done else None
    if not block_until_all_done:
        for args in args_list:
            in_thread(fn, tuple(args))
        return None
    with ThreadPoolExecutor(min(max_concurrent_executions, len(args_list))) as pool:
        calls = [pool.submit(fn, *args) for args in args_list]
    failures = [call.exception() for call in calls if call.exception() is not None]
    if failures:
        raise RuntimeError(f"Some threads for func {fn.__name__} did not complete successfully.") from failures[0]
    return {number: call.result() for number, call in enumerate(calls)}
