"""Says how a C program is compiled and linked: `cc program.c $(python -m farandole.c_flags --cflags --libs)`.

Owns the words of the flags. Where header and library lie is `c_library`'s.
"""

from __future__ import annotations

import os
import sys

from farandole.c_library import get_include, get_library


def main(words: list[str]) -> int:
    """Prints the flags that are asked for."""
    folder = os.path.dirname(get_library())
    flags = {"--cflags": f"-I{get_include()}", "--libs": f"-L{folder} -Wl,-rpath,{folder} -lfarandole"}
    if not words or any(word not in flags for word in words):
        print("usage: python -m farandole.c_flags [--cflags] [--libs]", file=sys.stderr)
        return 2
    print(" ".join(flags[word] for word in words))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
