"""Gradients on a device, against one that is not there (`tests/gpu/pretend.py`): in what company they leave."""

from __future__ import annotations

import pathlib

import pytest
from jobs import run_job

GPU = pathlib.Path(__file__).parents[1] / "gpu"
PARALLEL = pathlib.Path(__file__).parents[1] / "parallel"

pytestmark = pytest.mark.timeout(240)


def test_gradients_on_a_device_leave_together_and_groups_hold() -> None:
    job = run_job(
        2,
        """
        import sys
        sys.path[:0] = sys.argv[1:3]
        import torch
        import farandole.torch as hvd
        from farandole import _native
        from models import assert_alike, batches, own_part, small_network
        from torch.nn.functional import mse_loss

        hvd.init()
        calls = []
        batch, many = _native.allreduce_batch, _native.allreduce_many

        def count_batch(tensors, *terms):
            calls.append((len(tensors), terms[-1]))
            return batch(tensors, *terms)

        def count_many(requests):
            calls.extend((1, None) for _ in requests)
            return many(requests)

        def train(options):
            network = small_network(dtype=torch.float64)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9), network.named_parameters(),
                **options(network)
            )
            of_steps = []
            for x, y in batches(4, dtype=torch.float64):
                calls.clear()
                optimizer.zero_grad()
                mse_loss(network(own_part(x)), own_part(y)).backward()
                optimizer.step()
                of_steps.append(sorted(calls, key=str))
            return network, of_steps

        kinds = {
            "plain": lambda network: {},
            "two groups": lambda network: {"groups": 2},
            "lists": lambda network: {"groups": [list(network.parameters())[:3]]},
            "compressed": lambda network: {"compression": hvd.Compression.bf16, "groups": 3},
        }
        on_host = {kind: train(options)[0] for kind, options in kinds.items()}

        import pretend
        device = pretend.Device()
        _native.allreduce_batch, _native.allreduce_many = count_batch, count_many
        for kind, options in kinds.items():
            device.compute(0.05)
            network, of_steps = train(options)
            assert_alike(network, on_host[kind], rtol=0, atol=0)
            print(kind, *of_steps[-1])
        """,
        arguments=[str(GPU), str(PARALLEL)],
        seconds=200,
    )
    assert job.code == 0, f"{job.output}\n{job.errors}"
    for rank in (0, 1):
        plain, two, lists, compressed = job.lines(rank)
        # The first iteration has taught the order; all of it is one batch.
        assert plain == "plain (12, None)", plain
        assert two == "two groups (6, 'group.0.weight') (6, 'group.4.weight')", two
        alone = [f"(1, 'group.{name}')" for name in ("1.bias", "3.bias", "3.weight", "4.bias", "4.weight")]
        alone += [f"(1, 'group.{name}')" for name in ("6.bias", "6.weight", "8.bias", "8.weight")]
        assert lists == " ".join(["lists", *alone, "(3, 'group.0.weight')"]), lists
        assert compressed.count("(4, 'group.") == 3, compressed
