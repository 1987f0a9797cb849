"""Runs a member of an elastic job as `apart.py COMMAND WORDS…`: every other one in its own PID namespace.

Members with an odd number get a namespace, as from a container runtime; the others are executed in place. In its
namespace the command has process number 1, and /proc shows this namespace alone. The variable `OUTER_PID` has its
number in the namespace outside, so that a reader of its notes can find the process. The process outside waits, ends as
the command does, and passes SIGTERM on.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_CLONE_NEWNS, _CLONE_NEWPID = 0x00020000, 0x20000000
_MS_REC, _MS_PRIVATE = 1 << 14, 1 << 18
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _become(words: list[str], outer_pid: int) -> None:
    """The command, in the child."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    _check(_libc.unshare(_CLONE_NEWNS), "unshare")
    _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "making mounts private")
    _check(_libc.mount(b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None), "mounting /proc")
    os.environ["OUTER_PID"] = str(outer_pid)
    os.execvp(words[0], words)


def main() -> None:
    words = sys.argv[1:]
    if int(os.environ["FARANDOLE_ELASTIC_MEMBER"]) % 2 == 0:
        os.execvp(words[0], words)
    _check(_libc.unshare(_CLONE_NEWPID), "unshare")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _become(words, int(os.read(reader, 32)))
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    os.write(writer, str(child).encode())
    while True:
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number != signal.SIGKILL:
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
