"""Tensors on a GPU. Run by hand on a machine that has one, on which the ranks may share it:

    farandole run -np 2 python -m pytest tests/device

These tests are apart from the others because they fail, and are meant to fail, where there is no GPU.
"""

import torch

import farandole.torch as hvd

DTYPES = [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
SHAPES = [(), (7,), (0, 3), (5, 4, 3)]


def device():
    hvd.init(process_sets="dynamic")
    return torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())


def tensor_of(rank, shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randint(0, 2, shape, generator=generator).to(dtype)


def total(shape, dtype):
    everybody = torch.stack([tensor_of(rank, shape, dtype).to(torch.float64) for rank in range(hvd.size())])
    return (everybody.amax(0) if dtype == torch.bool else everybody.sum(0)).to(dtype)


def same(result, expected, place):
    assert result.device == place, (result.device, place)
    assert result.dtype == expected.dtype and result.shape == expected.shape
    assert torch.equal(result.cpu(), expected), (result, expected)


def test_every_operation_on_every_type_and_shape():
    place = device()
    for dtype in DTYPES:
        for shape in SHAPES:
            before = tensor_of(hvd.rank(), shape, dtype)
            tensor = before.to(place)
            same(hvd.allreduce(tensor, op=hvd.Sum), total(shape, dtype), place)
            same(hvd.broadcast(tensor, hvd.size() - 1), tensor_of(hvd.size() - 1, shape, dtype), place)
            same(tensor, before, place)
            assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
            same(tensor, total(shape, dtype), place)
            if shape:
                tensor = before.to(place)
                everybody = [tensor_of(rank, shape, dtype) for rank in range(hvd.size())]
                same(hvd.allgather(tensor), torch.cat(everybody), place)
                rows = torch.tensor([shape[0]] + [0] * (hvd.size() - 1), dtype=torch.int32, device=place)
                output, received = hvd.alltoall(tensor, rows)
                expected = torch.cat(everybody) if hvd.rank() == 0 else before[:0]
                same(output, expected, place)
                assert received.device == place and received.sum().item() == expected.shape[0]
                results = hvd.grouped_allreduce([tensor, tensor.cpu()], op=hvd.Sum)
                same(results[0], total(shape, dtype), place)
                same(results[1], total(shape, dtype), torch.device("cpu"))
                part = hvd.reducescatter(tensor, op=hvd.Sum)
                assert part.device == place
                same(hvd.allgather(part), total(shape, dtype), place)


def test_strided_tensors():
    place = device()
    tensor = tensor_of(hvd.rank(), (6, 4), torch.float32).to(place).t()
    expected = total((6, 4), torch.float32).t()
    same(hvd.allreduce(tensor, op=hvd.Sum), expected, place)
    hvd.allreduce_(tensor, op=hvd.Sum)
    same(tensor, expected, place)
    memory = torch.ones(4, 6, device=place)
    hvd.allreduce_(memory[:, ::2], op=hvd.Sum)
    same(memory[:, 1::2], torch.ones(4, 3), place)
    same(memory[:, ::2], torch.full((4, 3), float(hvd.size())), place)


def test_what_was_queued_before_the_call_is_what_is_sent():
    """The stream is kept busy, so that a copy that did not wait for it would find old values."""
    place = device()
    weights = torch.randn(2048, 2048, device=place)
    hvd.barrier()
    for step in range(10):
        tensor = torch.zeros(1 << 20, device=place)
        busy = weights
        for _ in range(20):
            busy = (busy @ weights).clamp(-1, 1)
        tensor += step + 1 + 0 * busy[0, 0].nan_to_num()
        handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name=f"queued.{step}")
        again = tensor * 0
        result = hvd.synchronize(handle)
        assert torch.all(result == (step + 1) * hvd.size()), step
        assert torch.all(again == 0)


def test_tensors_that_are_dropped_at_once_are_sent_as_they_were():
    place = device()
    handles = []
    for index in range(50):
        handles.append(hvd.allreduce_async(torch.full((1 << 18,), float(index), device=place), name=f"d.{index}", op=hvd.Sum))
        torch.full((1 << 18,), -1.0, device=place)
    for index, handle in enumerate(handles):
        assert torch.all(hvd.synchronize(handle) == index * hvd.size()), index


def test_another_stream():
    place = device()
    stream = torch.cuda.Stream(place)
    with torch.cuda.stream(stream):
        tensor = torch.full((1 << 20,), 3.0, device=place)
        result = hvd.allreduce(tensor, op=hvd.Sum)
        doubled = result * 2
    stream.synchronize()
    assert torch.all(doubled == 6 * hvd.size())


def test_gradients():
    place = device()
    tensor = torch.ones(4, 2, device=place, requires_grad=True)
    (hvd.allreduce(tensor, op=hvd.Sum) * 3).sum().backward()
    same(tensor.grad, torch.full((4, 2), 3.0 * hvd.size()), place)
    tensor.grad = None
    (hvd.allgather(tensor) * 3).sum().backward()
    same(tensor.grad, torch.full((4, 2), 3.0), place)


def test_refusals_reach_the_one_who_waits():
    place = device()
    if hvd.size() == 1:
        return
    try:
        hvd.allreduce(torch.ones(3 + hvd.rank(), device=place), name="refused")
        raise AssertionError("tensors of different shapes were reduced")
    except hvd.HorovodInternalError as error:
        assert "Mismatched ALLREDUCE tensor shapes" in str(error)
    same(hvd.allreduce(torch.ones(3, device=place), op=hvd.Sum), torch.full((3,), float(hvd.size())), place)


def test_training_keeps_ranks_alike():
    place = device()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)).to(place)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(16, 32, device=place)).square().mean().backward()
        optimizer.step()
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    everybodys = hvd.allgather(flat.unsqueeze(0))
    assert all(torch.equal(everybodys[0], theirs) for theirs in everybodys)
