"""Where C programs find Farandole: the folder of its header, and its library.

    cc average.c $(python -m farandole.c_library --cflags --libs) -o average

The library is for programs in C and C++, and whatever loads it without Python. In a Python process the front ends have
an engine already; its C functions are those of `farandole.basics.basics.MPI_LIB_CTYPES`. Two engines in one process are
refused.

Not here: the functions themselves; `farandole.h` says what they do.
"""

from __future__ import annotations

import os
import sys

__all__ = ["get_include", "get_library"]


def get_include() -> str:
    """The folder of `farandole.h`, for a compiler's `-I`."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "include")


def get_library() -> str:
    """The path of `libfarandole.so`."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "libfarandole.so")


def _main(words: list[str]) -> int:
    folder = os.path.dirname(get_library())
    flags = {"--cflags": f"-I{get_include()}", "--libs": f"-L{folder} -Wl,-rpath,{folder} -lfarandole"}
    if not words or any(word not in flags for word in words):
        print("usage: python -m farandole.c_library [--cflags] [--libs]", file=sys.stderr)
        return 2
    print(" ".join(flags[word] for word in words))
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
