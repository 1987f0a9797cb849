"""`horovod.common`: the modules below it that scripts and tests import."""
