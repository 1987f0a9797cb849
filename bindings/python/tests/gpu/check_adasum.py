"""Adasum of tensors in device memory, against that of host memory, bit by bit."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import torch
from checking import adasum_on_devices, bits_of, median_seconds, no_host_memory, reference, same, small_model

import farandole.torch as hvd


def adasum(device: torch.device) -> None:
    """Adasum in device memory has the bits of host memory, on all ranks and in every run; it stays there."""
    sizes = [0, 1, 17, 255, 4096, 4097, 100_003, 258 * 4096 + 5]
    for dtype in reference.FLOATS:
        for prescale, postscale in ((1.0, 1.0), (0.3, 1.7)):
            generator = torch.Generator().manual_seed(17 * hvd.rank() + 1)
            mine = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
            options = {"op": hvd.Adasum, "prescale_factor": prescale, "postscale_factor": postscale}
            expected = [bits_of(total) for total in hvd.grouped_allreduce(mine, **options)]
            for place, bits in enumerate(expected):
                everybodys = hvd.allgather(bits.unsqueeze(0))
                assert all(torch.equal(other, bits) for other in everybodys), (dtype, sizes[place])
            _adasum_again(mine, expected, options, device)
    zeros = torch.zeros(5, device=device)
    same(hvd.allreduce(zeros, op=hvd.Adasum), torch.zeros(5), device)


def _adasum_again(
    mine: list[torch.Tensor], expected: list[torch.Tensor], options: dict[str, object], device: torch.device
) -> None:
    """Ten times on the device: in a group, each alone, in place, and strided."""

    def check(total: torch.Tensor, place: int, way: str) -> None:
        assert total.device == device, (total.device, device)
        assert torch.equal(bits_of(total), expected[place]), (way, total.dtype, len(total), options)

    with no_host_memory() if adasum_on_devices() else nullcontext():
        for _ in range(10):
            there = [tensor.to(device, copy=True) for tensor in mine]
            for place, total in enumerate(hvd.grouped_allreduce(there, **options)):
                check(total, place, "group")
            for place, tensor in enumerate(there):
                check(hvd.allreduce(tensor, **options), place, "alone")
                wide = torch.stack([tensor, tensor], dim=1)[:, 0]
                check(hvd.allreduce_(wide, **options), place, "strided")
                check(hvd.allreduce_(tensor, **options), place, "in place")


def adasum_optimizer(device: torch.device) -> None:
    """Steps that are combined on the device are those that are combined in host memory."""
    networks = [small_model().double(), small_model().double().to(device)]
    optimizers = []
    for network in networks:
        hvd.broadcast_parameters(network.state_dict(), root_rank=0)
        plain = torch.optim.SGD(network.parameters(), lr=0.05)
        optimizers.append(hvd.DistributedOptimizer(plain, network.named_parameters(), op=hvd.Adasum))
    for step in range(4):
        generator = torch.Generator().manual_seed(step * hvd.size() + hvd.rank())
        images = torch.randn(8, 3, 8, 8, generator=generator, dtype=torch.float64)
        for network, wrapped in zip(networks, optimizers):
            wrapped.zero_grad()
            network(images.to(next(network.parameters()).device)).square().mean().backward()
            wrapped.step()
    for expected, actual in zip(networks[0].parameters(), networks[1].parameters()):
        torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-9, atol=1e-9)
        everybodys = hvd.allgather(actual.detach().unsqueeze(0))
        assert all(torch.equal(other, everybodys[0]) for other in everybodys)


def adasum_speed(device: torch.device) -> str:
    """How long Adasum takes of one tensor, and of 161."""

    def milliseconds(elems: int, count: int, dtype: torch.dtype = torch.float32) -> float:
        generator = torch.Generator(device).manual_seed(hvd.rank())
        tensors = [torch.randn(elems // count, device=device, generator=generator).to(dtype) for _ in range(count)]
        name = f"adasum.{elems}.{count}.{dtype}"
        return 1e3 * median_seconds(lambda: hvd.grouped_allreduce_(tensors, name=name, op=hvd.Adasum))

    return (
        f"Adasum on {hvd.size()} ranks, {'in device memory' if adasum_on_devices() else 'through host memory'}: "
        f"4 KB {milliseconds(1 << 10, 1):.3f} ms, 1 MB {milliseconds(1 << 18, 1):.3f}, "
        f"64 MB {milliseconds(1 << 24, 1):.3f}, 64 MB of float16 {milliseconds(1 << 25, 1, torch.float16):.3f}, "
        f"102 MB in 161 tensors {milliseconds(25_557_032, 161):.3f} (medians of 30)"
    )
