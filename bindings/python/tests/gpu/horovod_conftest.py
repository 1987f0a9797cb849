"""For Horovod's own tests on a machine with one GPU, as `conftest.py` beside them (docs/horovod.md).

They place tensors on the device that has the number of their local rank; ranks that share a GPU have one device.
"""

import torch

import horovod.torch as hvd

if torch.cuda.is_available() and torch.cuda.device_count() == 1:
    hvd.local_rank = lambda: 0
