"""`hvd.elastic`: training with PyTorch that goes on when ranks leave or join.

Horovod's names: `run`, `TorchState`, `ElasticSampler`. Ours, for a plain loop without commits: `Training`, `step`,
`ElasticBatchSampler`, the policies, `ParameterCheck` and `fence`. docs/elastic.md says which to take.
"""

from farandole.elastic import HostsUpdatedInterrupt, KeepTotalBatch, LinearScaling, fence, run
from farandole.torch.elastic.parameter_check import ParameterCheck, ParametersDifferError
from farandole.torch.elastic.sampler import ElasticBatchSampler, ElasticSampler
from farandole.torch.elastic.state import TorchState
from farandole.torch.elastic.streaming import Streaming
from farandole.torch.elastic.training import Training, step

__all__ = [
    "ElasticBatchSampler",
    "ElasticSampler",
    "HostsUpdatedInterrupt",
    "KeepTotalBatch",
    "LinearScaling",
    "ParameterCheck",
    "ParametersDifferError",
    "Streaming",
    "TorchState",
    "Training",
    "fence",
    "run",
    "step",
]
