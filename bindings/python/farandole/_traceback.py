"""Tracebacks of uncaught exceptions that no line of another thread tears apart.

Python writes such a traceback in many pieces. Meanwhile a thread of the engine may write a line to the same standard
error: when a job fails, each rank says where it has left its records, at the same moment. Lines of the engine are
written by one call each; here the traceback is, too, so each of them lands before or after the other.
"""

from __future__ import annotations

import os
import sys
import traceback
from types import TracebackType
from typing import Optional


def install() -> None:
    """Has uncaught exceptions written by one call, unless the program has a hook of its own."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = write_at_once


def write_at_once(
    kind: type[BaseException], exception: BaseException, origin: Optional[TracebackType]
) -> None:
    """Writes what Python would write. To a terminal Python writes it itself, with its colours."""
    stream = sys.stderr
    if stream is None or stream.isatty():
        sys.__excepthook__(kind, exception, origin)
        return
    text = "".join(traceback.format_exception(kind, exception, origin))
    try:
        descriptor = stream.fileno()
    except (AttributeError, OSError, ValueError):
        # Not a file: the program has put an object of its own there.
        stream.write(text)
        return
    stream.flush()
    left = memoryview(text.encode(stream.encoding or "utf-8", "backslashreplace"))
    while left:
        left = left[os.write(descriptor, left) :]
