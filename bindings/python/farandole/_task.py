"""A rank of `farandole.run`: reads a function from its task, calls it, and leaves what it returns.

The launcher has opened two descriptors for this process. One holds the task: a list of folders to import from, then the
function with its arguments, both pickled. The other takes the result: a letter, `V` and the value or `E` and what was
raised, pickled. Neither is inherited by what the function starts. How these bytes travel is the launcher's business;
they came from a process of the same user that holds the job's key.

Everything that can be wrong with a function becomes a result: a module that is missing here, an exception, a value that
cannot be pickled. What ends the process otherwise (`sys.exit`, a signal) is for the launcher to tell.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from typing import IO, Any

from farandole import _ending

TASK_FD = "FARANDOLE_TASK_FD"
RESULT_FD = "FARANDOLE_RESULT_FD"


def main() -> int:
    """Does the task of this rank; the exit code says whether the function returned."""
    with _take(TASK_FD, "rb") as task, _take(RESULT_FD, "wb") as result:
        try:
            sys.path.extend(folder for folder in pickle.load(task) if folder not in sys.path)
            function, args, kwargs = pickle.load(task)
            _leave(result, b"V", function(*args, **kwargs))
        except Exception as error:
            # The frames of this file say nothing about what went wrong.
            lines = traceback.format_exception(type(error), error, error.__traceback__)
            sys.stderr.write("".join(lines))
            _ending.report(error)
            _leave_error(result, error, "".join(lines))
            return 1
    return 0


def _take(variable: str, mode: str) -> IO[bytes]:
    number = os.environ.pop(variable, None)
    if number is None:
        raise SystemExit(f"{variable} is not set: this module is started by farandole.run")
    os.set_inheritable(int(number), False)
    # Opened anew: the descriptor of the task is shared by all ranks of this host, and with it the place in the file.
    return open(f"/proc/self/fd/{number}", mode)


def _leave(result: IO[bytes], kind: bytes, value: Any) -> None:
    import cloudpickle

    result.seek(0)
    result.truncate()
    result.write(kind)
    cloudpickle.dump(value, result, protocol=pickle.HIGHEST_PROTOCOL)
    result.flush()


def _leave_error(result: IO[bytes], error: Exception, lines: str) -> None:
    summary = "".join(traceback.format_exception_only(type(error), error)).strip()
    try:
        _leave(result, b"E", (summary, lines, error))
    except Exception:
        # An exception that cannot be sent is told of all the same.
        _leave(result, b"E", (summary, lines, None))


if __name__ == "__main__":
    _ending.watch()
    code = main()
    sys.exit(code)
