"""`horovod.runner.util`: the module `threads`."""
