"""`horovod.runner.elastic`: what scripts and tests import of it, `constants`, `discovery` and `worker`.

Not there: the driver, its registry and its rendezvous. Members of a job decide among themselves who is in it.
"""
