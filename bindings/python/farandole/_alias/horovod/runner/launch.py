"""`horovod.runner.launch`: the command `horovodrun`, which is `farandole run --horovod`.

Owns the hand-over alone: the process becomes the launcher, with the same words after the command. Flags, and what is
said about those that mean something else here, are the launcher's affair (docs/run.md). Not there: functions of
Horovod's launcher.
"""

import os
import pathlib
import shutil
import sys
from typing import NoReturn


def run_commandline() -> NoReturn:
    """Becomes `farandole run --horovod` with the words of this command line."""
    # Beside the interpreter first: an environment's own launcher fits its own engine.
    beside = pathlib.Path(sys.executable).with_name("farandole")
    command = str(beside) if os.access(beside, os.X_OK) else shutil.which("farandole")
    if command is None:
        raise SystemExit(
            f"horovodrun: the command farandole is neither beside {sys.executable} nor on the PATH. It comes with the "
            "wheel of Farandole: pip install farandole"
        )
    os.execv(command, ["farandole", "run", "--horovod", *sys.argv[1:]])
