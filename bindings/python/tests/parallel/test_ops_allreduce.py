"""Allreduce: every operation, element type, shape, form and process set, against plain torch."""

import pytest
import torch
from reference import DTYPES, FLOATS, SHAPES, contributions, mine, reduced, same, strided_versions

import farandole.torch as hvd

pytestmark = pytest.mark.usefixtures("job")

OPS = {"Average": hvd.Average, "Sum": hvd.Sum, "Min": hvd.Min, "Max": hvd.Max, "Product": hvd.Product}


@pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())
def test_every_type_shape_form_and_set(op, sets):
    for process_set in sets:
        for dtype in DTYPES:
            for shape in SHAPES:
                expected = reduced(contributions(process_set, shape, dtype), op)
                before = mine(shape, dtype)
                tensor = before.clone()
                same(hvd.allreduce(tensor, op=op, process_set=process_set), expected)
                handle = hvd.allreduce_async(tensor, op=op, process_set=process_set)
                same(hvd.synchronize(handle), expected)
                same(tensor, before)
                result = hvd.allreduce_(tensor, op=op, process_set=process_set)
                assert result is tensor
                same(tensor, expected)
                tensor = before.clone()
                handle = hvd.allreduce_async_(tensor, op=op, process_set=process_set)
                assert hvd.synchronize(handle) is tensor
                same(tensor, expected)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())
def test_groups_of_every_type(op, sets):
    for process_set in sets:
        shapes = [SHAPES[index % len(SHAPES)] for index in range(len(DTYPES))]
        befores = [mine(shape, dtype, seed=7) for shape, dtype in zip(shapes, DTYPES)]
        expected = [reduced(contributions(process_set, shape, dtype, 7), op) for shape, dtype in zip(shapes, DTYPES)]
        tensors = [tensor.clone() for tensor in befores]
        results = hvd.grouped_allreduce(tensors, op=op, process_set=process_set)
        assert isinstance(results, list)
        for pair in zip(results, expected):
            same(*pair)
        for pair in zip(tensors, befores):
            same(*pair)
        results = hvd.synchronize(hvd.grouped_allreduce_async(tensors, op=op, process_set=process_set))
        for pair in zip(results, expected):
            same(*pair)
        results = hvd.grouped_allreduce_(tensors, op=op, process_set=process_set)
        assert all(result is tensor for result, tensor in zip(results, tensors))
        for pair in zip(tensors, expected):
            same(*pair)
        tensors = [tensor.clone() for tensor in befores]
        hvd.synchronize(hvd.grouped_allreduce_async_(tensors, op=op, process_set=process_set))
        for pair in zip(tensors, expected):
            same(*pair)


def test_average_is_the_default_and_the_old_parameter_still_works():
    everybody = contributions(hvd.global_process_set, (5,))
    tensor = mine((5,))
    same(hvd.allreduce(tensor), reduced(everybody, hvd.Average))
    with pytest.warns(DeprecationWarning):
        same(hvd.allreduce(tensor, False), reduced(everybody, hvd.Sum))
    with pytest.warns(DeprecationWarning):
        same(hvd.allreduce(tensor, average=True), reduced(everybody, hvd.Average))
    with pytest.raises(ValueError, match="The op parameter supersedes average"):
        hvd.allreduce(tensor, average=True, op=hvd.Sum)


def test_factors_multiply_contributions_and_result(sets):
    for process_set in sets:
        for dtype in FLOATS:
            for op in (hvd.Sum, hvd.Average, hvd.Max):
                everybody = contributions(process_set, (4, 3), dtype)
                expected = reduced(everybody, op, prescale=0.5, postscale=4.0)
                how = dict(op=op, prescale_factor=0.5, postscale_factor=4.0, process_set=process_set)
                same(hvd.allreduce(mine((4, 3), dtype), **how), expected)
                same(hvd.allreduce_(mine((4, 3), dtype), **how), expected)
                [result] = hvd.grouped_allreduce([mine((4, 3), dtype)], **how)
                same(result, expected)


def test_strided_tensors_are_reduced_and_written_where_they_lie(sets):
    for process_set in sets:
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint16):
            for shape in ((), (6,), (5, 4, 3)):
                expected = reduced(contributions(process_set, shape, dtype), hvd.Sum)
                for tensor in strided_versions(mine(shape, dtype)):
                    same(hvd.allreduce(tensor, op=hvd.Sum, process_set=process_set), expected)
                    strides = tensor.stride()
                    assert hvd.allreduce_(tensor, op=hvd.Sum, process_set=process_set) is tensor
                    assert tensor.stride() == strides
                    torch.testing.assert_close(tensor.contiguous(), expected, rtol=0, atol=0)


def test_what_lies_between_the_elements_of_a_strided_tensor_is_left_alone():
    memory = torch.full((4, 6), 7.0)
    hvd.allreduce_(memory[:, ::2], op=hvd.Sum)
    expected = torch.full((4, 6), 7.0)
    expected[:, ::2] *= hvd.size()
    same(memory, expected)


def test_channels_last_and_expanded_tensors():
    image = mine((2, 3, 4, 5)).to(memory_format=torch.channels_last)
    expected = reduced(contributions(hvd.global_process_set, (2, 3, 4, 5)), hvd.Sum)
    same(hvd.allreduce(image, op=hvd.Sum), expected)
    row = mine((5,))
    expected = reduced(contributions(hvd.global_process_set, (5,)), hvd.Sum).expand(3, 5)
    same(hvd.allreduce(row.expand(3, 5), op=hvd.Sum), expected)
    with pytest.raises(ValueError, match="cannot be written in place"):
        hvd.allreduce_(row.expand(3, 5), op=hvd.Sum)


def test_parameters_and_their_gradients_are_reduced_in_place():
    parameter = torch.nn.Parameter(mine((3, 3)))
    parameter.grad = mine((3, 3), seed=1)
    expected = reduced(contributions(hvd.global_process_set, (3, 3)), hvd.Average)
    assert hvd.allreduce_(parameter) is parameter
    assert parameter.requires_grad and parameter.is_leaf
    same(parameter.detach(), expected)
    hvd.allreduce_(parameter.grad)
    same(parameter.grad, reduced(contributions(hvd.global_process_set, (3, 3), seed=1), hvd.Average))


def test_many_at_once_are_fused_and_right():
    shapes = [(index % 37 + 1,) for index in range(300)]
    asked = [hvd.allreduce_async(mine(shape, seed=i), op=hvd.Sum, name=f"many.{i}") for i, shape in enumerate(shapes)]
    for index, (shape, handle) in enumerate(zip(shapes, asked)):
        everybody = contributions(hvd.global_process_set, shape, seed=index)
        same(hvd.synchronize(handle), reduced(everybody, hvd.Sum))
    assert all(hvd.synchronize(handle) is None for handle in asked)


def test_large_tensors():
    elems = 3_000_001
    tensor = torch.full((elems,), float(hvd.rank() + 1))
    hvd.allreduce_(tensor, op=hvd.Sum)
    total = hvd.size() * (hvd.size() + 1) / 2
    assert torch.all(tensor == total)


def test_adasum_of_orthogonal_gradients_is_their_sum_and_of_parallel_ones_their_mean(sets):
    for process_set in sets:
        for dtype in FLOATS:
            place, size = process_set.rank(), process_set.size()
            orthogonal = torch.zeros(size + 3, dtype=dtype)
            orthogonal[place] = 2
            expected = torch.zeros(size + 3, dtype=dtype)
            expected[:size] = 2
            same(hvd.allreduce(orthogonal, op=hvd.Adasum, process_set=process_set), expected)
            parallel = torch.full((5,), 3, dtype=dtype)
            result = hvd.allreduce(parallel, op=hvd.Adasum, process_set=process_set)
            torch.testing.assert_close(result, parallel, rtol=1e-2, atol=0)


def test_compression_travels_narrow_and_comes_back_wide():
    tensor = mine((6,), torch.float64)
    expected = reduced(contributions(hvd.global_process_set, (6,), torch.float64), hvd.Sum)
    same(hvd.allreduce(tensor, op=hvd.Sum, compression=hvd.Compression.fp16), expected)
    [result] = hvd.grouped_allreduce([tensor], op=hvd.Sum, compression=hvd.Compression.fp16)
    same(result, expected)


def test_an_empty_group_is_nothing_to_do():
    assert hvd.grouped_allreduce([]) == []
    assert hvd.grouped_allgather([]) == []
    assert hvd.grouped_reducescatter([]) == []
