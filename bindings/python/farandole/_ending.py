"""How this interpreter ends: its exit code, and the exception behind it, for the ranks that wait for this one.

Exit handlers of Python are told neither. An uncaught exception passes `sys.excepthook`. `SystemExit` passes
nothing, so `sys.exit`, `exit` and `quit` raise a `SystemExit` that notices when it ends the interpreter: it is dropped
when no Python code runs any more. One that is caught is dropped by the code that has caught it, and forgotten.

Invariants: programs see what they would see without this module. What is not known is `None`, and not 0: a program may
raise `SystemExit` itself, or have looked `sys.exit` up before this module was imported.

`os._exit` and signals run no exit handlers; the launcher sees how such processes end.
"""

from __future__ import annotations

import builtins
import re
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, NoReturn, Optional

_ended_by: Optional[tuple[Optional[int], Optional[str]]] = None
"""Exit code and cause of the `SystemExit` that has ended the interpreter."""

_exit: Optional[int] = None
"""The id of the last `SystemExit` that has not been dropped."""

_exit_ending: tuple[Optional[int], Optional[str]] = (None, None)
"""What it would say."""

_uncaught: Optional[BaseException] = None
"""What `sys.excepthook` was last called with."""

_reported: Optional[tuple[int, BaseException]] = None
"""Exit code and exception of a function that was called for a launcher, which has caught the exception."""

_original_exit = sys.exit

_WORKER_ERROR = re.compile(r"Caught \w+ in ([^\n]*?)\.?\nOriginal Traceback ")
"""How PyTorch begins the text of an exception of a DataLoader's worker."""

_GRAPH_ERROR = "Graph execution error:"
"""How TensorFlow begins the text of an exception within a compiled function."""

_GRAPH_NOTES = ("Detected at node", "<stack traces", "Traceback ")
"""How lines begin in which TensorFlow says where the exception comes from."""

_ERROR_LINE = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)\b")
"""How the last line of a traceback begins."""

_is_unseen_exit_possible = False
"""Whether the program may have looked `sys.exit` up before this module was imported."""


class _SystemExit(SystemExit):
    """What `sys.exit` raises."""

    def __del__(self) -> None:
        global _ended_by, _exit
        if _exit == id(self):
            _exit = None
            # Code that has caught it would be running.
            if sys._getframe().f_back is None:
                _ended_by = _exit_ending


_SystemExit.__name__ = _SystemExit.__qualname__ = "SystemExit"


def exit(status: Any = None, /) -> NoReturn:
    """Exit the interpreter by raising SystemExit(status)."""
    # Not within `watch`: a program may send `sys.exit` to another process, where this name leads to it.
    if threading.current_thread() is not threading.main_thread() or isinstance(status, BaseException):
        _original_exit(status)
    raise _new_exit(status)


def watch() -> None:
    """From now on the end of this interpreter is watched. The first call counts."""
    global _is_unseen_exit_possible
    if sys.exit is exit:
        return
    _is_unseen_exit_possible = _is_inside_function(sys._getframe(1)) or _main_raises_system_exit()
    original_hook = sys.excepthook

    def excepthook(
        kind: type[BaseException], error: BaseException, traceback: Optional[TracebackType], /
    ) -> None:
        global _uncaught
        _uncaught = error
        original_hook(kind, error, traceback)

    sys.exit = exit
    sys.excepthook = excepthook
    _watch_quitters()


def report(error: BaseException) -> None:
    """A caught exception ends this process with exit code 1."""
    global _reported
    _reported = (1, error)


def ending() -> tuple[Optional[int], Optional[str]]:
    """The exit code, and what ends the interpreter, as a predicate: `raised ValueError: a bad batch`. Called when it
    ends."""
    if _reported is not None:
        return _reported[0], _raised(_reported[1])
    if _ended_by is not None:
        return _ended_by
    if _exit is not None:
        # Something still has a reference to it.
        return _exit_ending
    uncaught = _uncaught_exception()
    if uncaught is not None:
        return (None if isinstance(uncaught, KeyboardInterrupt) else 1), _raised(uncaught)
    is_known = not (_is_unseen_exit_possible or _is_interactive())
    return (0 if is_known else None), None


def _new_exit(status: Any) -> SystemExit:
    global _exit, _exit_ending
    raised = _SystemExit(*status) if isinstance(status, tuple) else _SystemExit(status)
    code, cause = _code_of(raised.code), None
    handled = sys.exc_info()[1]
    if code != 0:
        if isinstance(raised.code, str) and raised.code:
            cause = f"ended (exit code {code}): {raised.code}"
        elif handled is not None and not isinstance(handled, SystemExit):
            cause = _raised(handled)
    _exit, _exit_ending = id(raised), (code, cause)
    return raised


def _code_of(status: Any) -> int:
    """The exit code that the interpreter makes of this."""
    if status is None:
        return 0
    return int(status) & 0xFF if isinstance(status, int) else 1


def _raised(error: BaseException) -> str:
    """Never raises: text of an exception is the program's code."""
    try:
        text = str(error).strip()
    except Exception:
        text = ""
    name = type(error).__name__
    inner = _cause_within(text)
    if inner is not None:
        return f"raised {inner}"
    return f"raised {name}: {text}" if text else f"raised {name}"


def _cause_within(text: str) -> Optional[str]:
    """The exception that a framework has wrapped with its traceback in the text of its own; `None` for other texts."""
    of_worker = _WORKER_ERROR.match(text)
    if of_worker is None and not text.startswith(_GRAPH_ERROR):
        return None
    lines = [line.rstrip() for line in text.splitlines()[1:]]
    errors = [line for line in lines if _ERROR_LINE.match(line)]
    others = [line for line in lines if line and not line[0].isspace() and not line.startswith(_GRAPH_NOTES)]
    found = (errors or others)[-1:]
    return found[0] + (f" (in {of_worker[1]})" if of_worker else "") if found else None


def _uncaught_exception() -> Optional[BaseException]:
    """What has ended the program. Interactive programs and test runners go on after an exception that they show."""
    if _is_interactive():
        return None
    last: Optional[BaseException] = getattr(sys, "last_value", None)
    if last is None or last is _uncaught:
        return last
    # A program that has replaced the hook without calling ours may have passed it the exception.
    is_ours = getattr(sys.excepthook, "__module__", None) == __name__
    return None if is_ours else last


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _is_inside_function(frame: Optional[FrameType]) -> bool:
    """Whether a function of the program waits for this import: `sys.exit(main())` looks `exit` up before the call."""
    while frame is not None:
        code = frame.f_code
        if code.co_name != "<module>" and not code.co_filename.startswith("<frozen "):
            return True
        frame = frame.f_back
    return False


def _main_raises_system_exit() -> bool:
    """Whether the main program names `SystemExit`, which it may raise without `sys.exit`."""
    path: Optional[str] = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None:
        return False
    try:
        with open(path, "rb") as source:
            return b"SystemExit" in source.read()
    except OSError:
        return False


def _watch_quitters() -> None:
    """`exit()` and `quit()`, which are for people at a prompt and used in scripts."""
    for name in ("exit", "quit"):
        kind: Any = type(getattr(builtins, name, None))
        if kind.__name__ == "Quitter":
            kind.__call__ = _quit


def _quit(self: object, code: Any = None) -> NoReturn:
    try:
        sys.stdin.close()
    except Exception:
        pass
    sys.exit(code)
