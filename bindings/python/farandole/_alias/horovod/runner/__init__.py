"""`horovod.runner`: `run`, which starts a function on many processes, and the few modules that scripts import from
below it.

Not there: the parts of Horovod's launcher, which were never meant for scripts. `farandole run` is a program of its own.
"""

from farandole.launch import run

__all__ = ["run"]
