"""`horovod.runner.common.util`: what scripts and tests import of it."""
