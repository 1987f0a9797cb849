"""What the threads of this interpreter are doing: for stall reports and traces.

The engine calls `frames` on a thread of its own once it has the interpreter's lock, and `with_sources` afterwards:
reading files may take long where a file system hangs, and that may be the very cause of the stall. Where the
interpreter's lock cannot be had, the engine raises the signal that `watch_from_outside` has prepared, in its own
thread, and reads what `faulthandler` writes: that needs no lock.

`place` says in one line where a thread is in the script. It is called some forty times in a second, so it opens no file
and takes no lock.
"""

from __future__ import annotations

import faulthandler
import linecache
import os
import signal
import sys
import threading
from types import FrameType
from typing import Optional

# A report is read by people: the innermost calls say most, and what many threads do is mostly the same.
_MOST_FRAMES = 24
_MOST_THREADS = 8

# A real-time signal that nobody is known to use. It never leaves the thread that raises it.
_SIGNAL = signal.SIGRTMAX - 9

_Frames = list[tuple[str, int, str]]


def frames() -> list[tuple[str, _Frames]]:
    """Name and calls (file, line, function; the innermost last) of each thread but this one, the main thread first."""
    # threading.enumerate() would take a lock, which the thread that is stuck may hold.
    names = {ident: thread.name for ident, thread in list(getattr(threading, "_active", {}).items())}
    main = threading.main_thread().ident
    found: list[tuple[str, _Frames]] = []
    for ident, innermost in sorted(sys._current_frames().items(), key=lambda entry: (entry[0] != main, entry[0])):
        if ident == threading.get_ident() or len(found) == _MOST_THREADS:
            continue
        calls: _Frames = []
        frame: Optional[FrameType] = innermost
        while frame is not None and len(calls) < _MOST_FRAMES:
            code = frame.f_code
            calls.append((code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_name))
            frame = frame.f_back
        found.append((names.get(ident, f"thread {ident}"), calls[::-1]))
    return found


_SCRIPT, _LIBRARY, _INSIDE = range(3)
"""Whose code a file is: the script's; a library's that the script uses; ours, the frameworks' or Python's own, of which
nobody wants to hear."""

_FRAMEWORKS = ("torch", "tensorflow", "keras", "tf_keras", "jax")

_GENERATED = "__autograph_generated_file"
"""In the names of files that TensorFlow makes of functions which it compiles."""

_MOST_FILES = 4096
"""Files that are remembered. Programs that make up a file name for each piece of code must not fill the memory."""

_kinds: dict[str, int] = {}
_here = os.path.join(os.getcwd(), "") if os.path.isdir(".") else ""


def place(ident: int) -> Optional[str]:
    """File, line and function of the innermost call of a thread that is the script's own; a library's if there is none;
    None if that cannot be told."""
    frame: Optional[FrameType] = sys._current_frames().get(ident)
    library: Optional[FrameType] = None
    while frame is not None:
        kind = _kind(frame.f_code.co_filename)
        if kind == _SCRIPT:
            return _described(frame)
        if kind == _LIBRARY and library is None:
            library = frame
        frame = frame.f_back
    return None if library is None else _described(library)


def _described(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename.removeprefix(_here)}:{frame.f_lineno or code.co_firstlineno} in {code.co_name}"


def _kind(file: str) -> int:
    kind = _kinds.get(file)
    if kind is None:
        if len(_kinds) >= _MOST_FILES:
            _kinds.clear()
        kind = _kinds[file] = _kind_of(file)
    return kind


def _kind_of(file: str) -> int:
    frameworks = [getattr(sys.modules.get(name), "__file__", None) for name in _FRAMEWORKS]
    inside = [os.path.dirname(path) for path in (__file__, *frameworks) if path]
    if file.startswith("<frozen") or _GENERATED in file:
        return _INSIDE
    if any(file.startswith(os.path.join(root, "")) for root in inside):
        return _INSIDE
    if "site-packages" in file or "dist-packages" in file:
        return _LIBRARY
    # Where Python's own modules are.
    return _INSIDE if file.startswith(os.path.join(os.path.dirname(os.__file__), "")) else _SCRIPT


def with_sources(threads: list[tuple[str, _Frames]]) -> list[tuple[str, list[str]]]:
    """The same as lines of text, with the lines of the program."""
    described = []
    for name, calls in threads:
        lines = []
        for file, number, function in calls:
            source = linecache.getline(file, number).strip()
            lines.append(f"{file}:{number} in {function}" + (f": {source}" if source else ""))
        described.append((name, lines))
    return described


def watch_from_outside() -> Optional[tuple[int, int, int]]:
    """Prepares to be looked at without the interpreter's lock: signal, descriptor, and the main thread's number. None
    if that cannot be."""
    if signal.getsignal(_SIGNAL) is not signal.SIG_DFL:
        return None
    try:
        descriptor = os.memfd_create("farandole-stacks")
        faulthandler.register(_SIGNAL, file=descriptor, all_threads=True, chain=False)
    except (OSError, RuntimeError, ValueError, AttributeError):
        return None
    return _SIGNAL, descriptor, threading.main_thread().ident or 0
