"""What the ranks contribute, and what must come of it, worked out in plain torch.

Every rank can make every other rank's contribution, so that each knows the right result without communication. Values
are small integers: sums, products and averages over up to eight ranks are exact in every element type.
"""

import torch

import farandole.torch as hvd

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
DTYPES = [torch.bool, *UNSIGNED, *SIGNED, *FLOATS]
SHAPES = [(), (1,), (17,), (0, 3), (5, 4, 3)]


def contribution(rank, shape, dtype=torch.float32, seed=0):
    """The tensor of one rank."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    low = 0 if dtype == torch.bool or dtype in UNSIGNED else -3
    high = 2 if dtype == torch.bool else 4
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def contributions(process_set, shape, dtype=torch.float32, seed=0):
    """The tensors of all ranks of a set, in order."""
    return [contribution(rank, shape, dtype, seed) for rank in process_set.ranks]


def mine(shape, dtype=torch.float32, seed=0):
    """This rank's tensor."""
    return contribution(hvd.rank(), shape, dtype, seed)


def wide(tensor):
    """In a type in which plain torch can do everything."""
    return tensor.to(torch.float64 if tensor.is_floating_point() else torch.int64)


def reduced(tensors, op, prescale=1.0, postscale=1.0):
    """The combination of the ranks' tensors."""
    dtype = tensors[0].dtype
    stacked = torch.stack([wide(tensor) for tensor in tensors])
    if prescale != 1.0:
        stacked = stacked * prescale
    if dtype == torch.bool:
        any_of = op in (hvd.Sum, hvd.Max)
        return stacked.amax(0).to(dtype) if any_of else stacked.amin(0).to(dtype)
    result = {
        hvd.Sum: lambda: stacked.sum(0),
        hvd.Average: lambda: stacked.sum(0),
        hvd.Min: lambda: stacked.amin(0),
        hvd.Max: lambda: stacked.amax(0),
        hvd.Product: lambda: stacked.prod(0),
    }[op]()
    if op == hvd.Average:
        rounding = None if dtype.is_floating_point else "trunc"
        result = torch.div(result, len(tensors), rounding_mode=rounding)
    if postscale != 1.0:
        result = result * postscale
    return result.to(dtype)


def rows_of(process_set, tensor, place=None):
    """The rows that a rank gets of a scattered tensor."""
    place = process_set.rank() if place is None else place
    size = process_set.size()
    few, more = divmod(tensor.shape[0], size)
    start = place * few + min(place, more)
    return tensor[start : start + few + (1 if place < more else 0)]


def same(actual, expected):
    """Fails unless two tensors are equal in type, shape and value; averages of floats may differ by a rounding."""
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    assert actual.is_contiguous() or actual.dim() > 1
    assert not actual.requires_grad
    rounding = torch.finfo(actual.dtype).eps if actual.is_floating_point() else 0
    torch.testing.assert_close(wide(actual), wide(expected), rtol=2 * rounding, atol=0)


def strided_versions(tensor):
    """The same values in memory that is not contiguous."""
    if tensor.dim() == 0:
        yield torch.stack([tensor, tensor])[1]
        return
    spread = torch.stack([tensor, tensor], dim=-1)
    yield spread[..., 0]
    yield tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if tensor.dim() > 1:
        padded = torch.cat([tensor, tensor], dim=1)
        yield padded[:, : tensor.shape[1]]
