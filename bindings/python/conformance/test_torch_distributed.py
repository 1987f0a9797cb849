"""PyTorch's own tests of process groups, as its wheel ships them, with a backend of choice. `torch_suite.py` runs them.

The environment says what is tested: `BACKEND`, the backend that the tests take the groups to have, because many are for
backends of certain names only; `SUITE_BACKEND`, the backend that the groups do have; and `WORLD_SIZE`.

Ranks are forked and not spawned: a test takes a second then, and not the time of importing PyTorch for every rank.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

import farandole.torch.distributed
from torch.testing._internal import common_distributed

TAKEN_FOR = os.environ["BACKEND"]
SUITE_BACKEND = os.environ["SUITE_BACKEND"]

# What tests ask before they run. Those that need a GPU are left out by themselves.
for feature in ("ddp", "subgroup"):
    common_distributed.DistTestCases.backend_feature[feature].add(farandole.torch.distributed.NAME)

# The modules of tests read what stands above.
from torch.testing._internal.distributed import ddp_under_dist_autograd_test as rpc_tests  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402
from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import (  # noqa: E402
    TensorPipeRpcAgentTestFixture,
)


def _with_chosen_backend(function: Any) -> Any:
    """A function that makes process groups: of the chosen backend where a test names the one they are taken for."""

    def call(*arguments: Any, **options: Any) -> Any:
        if str(options.get("backend", "")).lower() == TAKEN_FOR:
            options["backend"] = SUITE_BACKEND
        return function(*arguments, **options)

    return call


dist.init_process_group = _with_chosen_backend(dist.init_process_group)
dist.new_group = _with_chosen_backend(dist.new_group)


class _Forked(common_distributed.MultiProcessTestCase):
    """Starts the ranks of each test."""

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


class TestProcessGroups(_Forked, distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """Operations, groups, DistributedDataParallel, its hooks, uneven inputs, monitored barriers, objects."""


class TestDdpUnderDistAutograd(rpc_tests.DdpUnderDistAutogradTest, TensorPipeRpcAgentTestFixture, _Forked):
    """DistributedDataParallel beside remote procedure calls; six ranks."""


class TestDdpComparison(rpc_tests.DdpComparisonTest, TensorPipeRpcAgentTestFixture, _Forked):
    """DistributedDataParallel within distributed autograd, against a model on one rank."""
