"""Where C programs find Farandole: the folder of its headers, and its library.

`python -m farandole.c_flags` prints both as flags for a compiler. The library is for programs in C and C++, and
whatever loads it without Python. In a Python process the front ends have an engine already; its C functions are those
of `farandole.basics.basics.MPI_LIB_CTYPES`. Two engines in one process are refused.

Not here: the functions themselves; `farandole.h` and `horovod.h` say what they do.
"""

from __future__ import annotations

import os

__all__ = ["get_include", "get_library"]


def get_include() -> str:
    """The folder of `farandole.h` and `horovod.h`, for a compiler's `-I`."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "include")


def get_library() -> str:
    """The path of `libfarandole.so`."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "libfarandole.so")
