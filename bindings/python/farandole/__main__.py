"""`python -m farandole`: the command `farandole` that belongs to this package.

It takes this process's place, so signals and the exit code are the command's own.
"""

import os
import sys

from farandole.launch import command

if __name__ == "__main__":
    path = command()
    os.execv(path, [path, *sys.argv[1:]])
