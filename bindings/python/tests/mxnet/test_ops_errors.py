"""What is wrong is an exception on every rank that names the cause, and the job goes on."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet.base import MXNetError

import farandole.mxnet as hvd
from farandole.exceptions import HorovodInternalError, MismatchError

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("job")]


@pytest.fixture(autouse=True)
def goes_on(job):
    """After every test, all ranks still reduce."""
    yield
    assert hvd.allreduce(mx.nd.ones((2,)), op=hvd.Sum).asnumpy().tolist() == [float(hvd.size())] * 2


def test_shapes_that_differ_are_an_error_where_somebody_waits() -> None:
    array = hvd.allreduce(mx.nd.ones((2 + hvd.rank(),)), name="shapes")
    with pytest.raises(MXNetError, match="allreduce.shapes.*Mismatched ALLREDUCE tensor shapes") as caught:
        array.wait_to_read()
    assert isinstance(caught.value, MismatchError)
    assert isinstance(caught.value, HorovodInternalError), "whoever catches Horovod's exception gets it, too"
    assert not str(caught.value).startswith("MismatchError")


def test_shapes_that_differ_are_an_error_in_place_and_the_array_can_be_used_again() -> None:
    array = mx.nd.ones((2 + hvd.rank(),))
    hvd.allreduce_(array, name="in place")
    with pytest.raises(HorovodInternalError, match="Mismatched"):
        array.asnumpy()
    array[:] = 3
    assert array.asnumpy().tolist() == [3.0] * (2 + hvd.rank())


def test_what_depends_on_a_failed_array_fails_with_the_same_cause() -> None:
    failed = hvd.allreduce(mx.nd.ones((2 + hvd.rank(),)), name="first")
    result = (failed + 1) * 2
    with pytest.raises(MXNetError, match="allreduce.first"):
        result.asnumpy()
    with pytest.raises(MXNetError, match="allreduce.second"):
        hvd.allgather(hvd.allreduce(mx.nd.ones((2 + hvd.rank(),)), name="second"))


@pytest.mark.parametrize("ask", ["allreduce", "broadcast", "allgather", "alltoall", "reducescatter"])
def test_types_that_differ_are_refused_by_every_operation(ask: str) -> None:
    array = mx.nd.ones((hvd.size(),), dtype="int32" if hvd.rank() == 0 else "float32")
    more = {"broadcast": (0,)}.get(ask, ())
    with pytest.raises(HorovodInternalError, match="Mismatched data types"):
        getattr(hvd, ask)(array, *more, name="types").wait_to_read()


def test_roots_that_differ_are_refused() -> None:
    with pytest.raises(HorovodInternalError, match="root"):
        hvd.broadcast(mx.nd.ones((2,)), hvd.rank(), name="roots").wait_to_read()


def test_a_group_fails_as_a_whole() -> None:
    fits, differs = mx.nd.ones((3,)), mx.nd.ones((2 + hvd.rank(),))
    hvd.grouped_allreduce_([fits, differs], name="group")
    with pytest.raises(HorovodInternalError, match="Mismatched"):
        fits.asnumpy()
    # MXNet throws the error of an operation once, whichever of its arrays is waited for first.
    assert fits.asnumpy().tolist() == [1.0] * 3 and differs.asnumpy().tolist() == [1.0] * (2 + hvd.rank())


def test_all_errors_come_out_of_waitall() -> None:
    hvd.allreduce(mx.nd.ones((2 + hvd.rank(),)), name="forgotten")
    with pytest.raises(HorovodInternalError, match="allreduce.forgotten"):
        mx.nd.waitall()
    mx.nd.waitall()


def test_wrong_use_is_a_value_error_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match="NDArray of MXNet, not ndarray"):
        hvd.allreduce(np.ones(3))
    with pytest.raises(ValueError, match="storage type 'row_sparse'"):
        hvd.allreduce(mx.nd.sparse.zeros("row_sparse", (3, 2)))
    with pytest.raises(ValueError, match="scalar"):
        hvd.reducescatter(mx.nd.array(1.0))
    with pytest.raises(ValueError, match="integer"):
        hvd.alltoall(mx.nd.ones((hvd.size(),)), splits=mx.nd.ones((hvd.size(),)))
    with pytest.raises(ValueError, match=f"invalid root rank {hvd.size()}"):
        hvd.broadcast(mx.nd.ones((2,)), hvd.size())
    with pytest.raises(ValueError, match="supersedes average"):
        hvd.allreduce(mx.nd.ones((2,)), average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="not registered"):
        hvd.allreduce(mx.nd.ones((2,)), process_set=hvd.ProcessSet([0]))


def test_splits_that_do_not_fit_are_refused() -> None:
    with pytest.raises((HorovodInternalError, ValueError), match="splits"):
        hvd.alltoall(mx.nd.ones((hvd.size() - 1,)), splits=[1] * hvd.size())
    with pytest.raises((HorovodInternalError, ValueError), match="splits"):
        hvd.alltoall(mx.nd.ones((hvd.size() + 1,)))


def test_a_name_that_is_in_use_is_refused_and_the_first_operation_is_not_harmed() -> None:
    """Rank 0 asks twice before the others ask once; MXNet's engine begins both, because the arrays differ."""
    first = hvd.allreduce(mx.nd.ones((2,)), op=hvd.Sum, name="twice") if hvd.rank() == 0 else None
    second = hvd.allreduce(mx.nd.ones((2,)), op=hvd.Sum, name="twice") if hvd.rank() == 0 else None
    if hvd.rank() == 0:
        # Whichever of the two MXNet has begun first waits for the others; the other one is refused at once.
        refused = 0
        hvd.allgather_object(None, name="both are asked for")
        for array in (first, second):
            try:
                assert array.asnumpy().tolist() == [float(hvd.size())] * 2
            except ValueError as error:
                assert "same name" in str(error)
                refused += 1
        assert refused == 1
    else:
        hvd.allgather_object(None, name="both are asked for")
        assert hvd.allreduce(mx.nd.ones((2,)), op=hvd.Sum, name="twice").asnumpy().tolist() == [float(hvd.size())] * 2
