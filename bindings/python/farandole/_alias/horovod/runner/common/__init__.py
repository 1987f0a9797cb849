"""`horovod.runner.common`: the package `util`."""
