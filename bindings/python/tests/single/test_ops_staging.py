"""How tensors come to the engine and results come back, without an engine and without a GPU."""

import threading

import pytest
import torch
from waiting import wait_for

from farandole.torch import lent_memory, staging


class Gate:
    """An event of a device that comes to pass when the test says so."""

    def __init__(self):
        self.opened = threading.Event()

    def synchronize(self):
        assert self.opened.wait(10), "nobody opened the gate"

    def query(self):
        return self.opened.is_set()


class Done:
    """A request that is done."""

    def __init__(self, result=None):
        self.result = result

    def poll(self):
        return True


@pytest.fixture(autouse=True)
def results_without_an_engine(monkeypatch):
    monkeypatch.setattr(staging._native, "wait_all", lambda handles: [handle.result for handle in handles])


def gated(value=1.0):
    tensor = torch.zeros(2)
    gate = Gate()
    return lent_memory.Loan(tensor, torch.full((2,), value), gate), gate


def test_contiguous_host_memory_is_lent_as_it_is():
    for tensor in (torch.ones(3), torch.ones(()), torch.empty(0, 4), torch.nn.Parameter(torch.ones(2, 2))):
        loan = lent_memory.lend(tensor)
        assert not loan.is_copy
        assert loan.native_arguments()[0] == tensor.data_ptr()
        assert loan.copy_back("x") is tensor and not loan.has_moved()


def test_other_memory_gets_a_host_copy():
    for tensor in (torch.ones(3, 4).t(), torch.ones(6)[::2], torch.ones(4).expand(3, 4), torch.ones(2, 3, 4, 5)[:, 1]):
        loan = lent_memory.lend(tensor)
        assert loan.is_copy and loan.host.is_contiguous()
        assert loan.host.data_ptr() != tensor.data_ptr()
        torch.testing.assert_close(loan.host, tensor)


def test_a_result_is_copied_back_to_where_the_tensor_lies():
    memory = torch.zeros(4, 6)
    view = memory[:, ::2]
    loan = lent_memory.lend_to_write(view)
    loan.host.fill_(5)
    assert loan.copy_back("x") is view
    assert torch.all(memory[:, ::2] == 5) and torch.all(memory[:, 1::2] == 0)


def test_a_tensor_with_other_memory_is_not_given_a_result():
    for tensor in (torch.ones(6), torch.ones(2, 3).t()):
        loan = lent_memory.lend_to_write(tensor)
        loan.native_arguments()
        tensor.data = torch.zeros(1)
        assert loan.has_moved()
        with pytest.raises(ValueError, match="memory of tensor 'x' was replaced"):
            loan.copy_back("x")


def test_host_memory_that_moves_while_its_group_waits_for_a_device_is_not_lent():
    staged, gate = gated()
    tensor = torch.ones(4)
    loan = lent_memory.lend(tensor)
    loan.native_arguments()
    work = staging.submit([staged, loan], lambda: [Done()])
    tensor.resize_(1 << 20)
    gate.opened.set()
    with pytest.raises(ValueError, match="was replaced"):
        work.wait()


def test_a_batch_waits_for_its_data_too():
    class BatchHandle:
        def poll(self):
            return True

        def wait(self):
            pass

    loan, gate = gated()
    asked = []
    work = staging.submit_batch([loan], lambda: asked.append(1) or BatchHandle())
    assert not work.poll() and asked == []
    gate.opened.set()
    assert work.wait() == [] and asked == [1]


def test_tensors_on_the_host_are_lent_together_as_they_are_alone():
    tensors = [torch.ones(3), torch.ones(2, 3).t()]
    loans = lent_memory.lend_together(tensors)
    assert [loan.is_copy for loan in loans] == [False, True]
    assert all(loan.tensor is tensor for loan, tensor in zip(loans, tensors))


def test_negative_views_are_resolved():
    tensor = torch.view_as_complex(torch.ones(3, 2)).conj().imag
    assert tensor.is_neg()
    torch.testing.assert_close(lent_memory.lend(tensor).host, torch.full((3,), -1.0))


def test_in_place_results_do_not_disturb_autograd():
    base = torch.ones(2, 4, requires_grad=True)
    view = (base * 2).t()
    product = view * view
    lent_memory.lend_to_write(view.detach()).copy_back("x")
    product.sum().backward()


def test_a_copy_has_a_place_of_its_own_only_where_nothing_was_copied_yet():
    tensor = torch.ones(3, requires_grad=True)
    _, output = lent_memory.lend_for_copy(tensor)
    assert output is not None and not output.requires_grad and output.data_ptr() != tensor.data_ptr()
    loan, output = lent_memory.lend_for_copy(torch.ones(3, 4).t())
    assert output is None and loan.result() is loan.host


def test_what_cannot_be_lent():
    for tensor in (torch.ones(2, dtype=torch.complex64), torch.eye(2).to_sparse(), torch.ones(2, device="meta")):
        with pytest.raises(ValueError, match="is not supported"):
            lent_memory.lend(tensor)
        with pytest.raises(ValueError, match="is not supported"):
            lent_memory.lend_to_write(tensor)
    with pytest.raises(ValueError, match="A tensor was expected"):
        lent_memory.lend([1.0, 2.0])
    with pytest.raises(ValueError, match="share one place in memory"):
        lent_memory.lend_to_write(torch.ones(1).expand(3))
    assert lent_memory.lend_to_write(torch.ones(1).expand(1)).host.numel() == 1


def test_requests_whose_data_are_there_are_asked_for_at_once():
    work = staging.submit([lent_memory.lend(torch.ones(2))], lambda: [Done("result")])
    assert isinstance(work, staging.Work)
    assert work.poll() and work.wait() == ["result"]
    with pytest.raises(ValueError, match="wrong"):
        staging.submit([], _fail)


def _fail():
    raise ValueError("wrong")


def test_requests_wait_for_their_data_and_keep_their_order():
    asked = []
    first, first_gate = gated()
    second, second_gate = gated()

    def ask(number):
        return lambda: asked.append(number) or [Done(number)]

    works = [staging.submit([first], ask(1)), staging.submit([second, lent_memory.lend(torch.ones(1))], ask(2))]
    second_gate.opened.set()
    assert not works[0].poll() and not works[1].poll()
    assert asked == []
    first_gate.opened.set()
    assert works[1].wait() == [2] and works[0].wait() == [1]
    assert asked == [1, 2]
    assert works[0].poll() and works[1].poll()


def test_what_is_wrong_with_a_staged_request_is_raised_by_wait_and_the_next_one_runs():
    loan, gate = gated()
    wrong = staging.submit([loan], _fail)
    right = staging.submit([loan], lambda: [Done("right")])
    gate.opened.set()
    assert right.wait() == ["right"]
    assert wrong.poll()
    for _ in range(2):
        with pytest.raises(ValueError, match="wrong"):
            wrong.wait()


@pytest.fixture
def marks(monkeypatch):
    """The phases that are marked, as they begin and end."""
    seen = []
    monkeypatch.setattr(staging._native, "phase_begin", lambda name: seen.append(("begin", name)))
    monkeypatch.setattr(staging._native, "phase_end", lambda name: seen.append(("end", name)))
    return seen


def on_device():
    """A loan whose data a device computes and then copies, when the test says so."""
    computed, ready = Gate(), Gate()
    return lent_memory.Loan(torch.zeros(2), torch.zeros(2), ready, computed), computed, ready


def after(condition, gate):
    """Opens a gate as soon as something is the case."""

    def wait():
        wait_for("the condition", condition)
        gate.opened.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_waiting_for_a_device_is_its_work_until_it_has_computed_and_a_loss_while_it_copies(marks):
    loan, computed, ready = on_device()
    work = staging.submit([loan], lambda: [Done("result")])
    threads = [
        after(lambda: marks == [("begin", "device work")], computed),
        after(lambda: marks[-1:] == [("begin", "device copy")], ready),
    ]
    assert work.wait() == ["result"]
    for thread in threads:
        thread.join(10)
    assert marks == [(edge, name) for name in ("device work", "device copy") for edge in ("begin", "end")]
    work.wait()
    assert len(marks) == 4, "what is there already is not waited for"


def test_a_device_that_computes_while_it_copies_loses_nothing(marks):
    first, first_computed, first_ready = on_device()
    second, second_computed, second_ready = on_device()
    works = [staging.submit([loan], lambda: [Done()]) for loan in (first, second)]
    first_computed.opened.set()
    # The second gradient is still being computed when the first one's copy is waited for.
    thread = after(lambda: ("begin", "device work") in marks, first_ready)
    works[0].wait()
    thread.join(10)
    assert {name for _, name in marks} == {"device work"}, marks
    second_computed.opened.set()
    thread = after(lambda: marks[-1:] == [("begin", "device copy")], second_ready)
    works[1].wait()
    thread.join(10)
    assert marks[-1] == ("end", "device copy"), marks


def test_what_a_device_has_left_of_a_phase_is_waited_for_in_that_phases_name(marks):
    left, (loan, computed, ready) = Gate(), on_device()
    work = staging.submit([loan], lambda: [Done("result")])
    staging.carry_over("evaluation", left)
    threads = [
        after(lambda: marks == [("begin", "evaluation")], left),
        after(lambda: marks[-1:] == [("begin", "device work")], computed),
        after(lambda: marks[-1:] == [("begin", "device copy")], ready),
    ]
    assert work.wait() == ["result"]
    for thread in threads:
        thread.join(10)
    names = ("evaluation", "device work", "device copy")
    assert marks == [(edge, name) for name in names for edge in ("begin", "end")]


def test_what_a_device_has_done_of_a_phase_is_not_waited_for(marks):
    done, (loan, computed, ready) = Gate(), on_device()
    done.opened.set()
    staging.carry_over("evaluation", done)
    work = staging.submit([loan], lambda: [Done("result")])
    threads = [after(lambda: bool(marks), gate) for gate in (computed, ready)]
    work.wait()
    for thread in threads:
        thread.join(10)
    assert ("begin", "evaluation") not in marks


def test_a_phase_ends_also_where_the_device_fails(marks):
    class Broken(Gate):
        def synchronize(self):
            super().synchronize()
            raise RuntimeError("the device is gone")

    gate = Broken()
    work = staging.submit([lent_memory.Loan(torch.zeros(2), torch.zeros(2), gate, gate)], lambda: [Done()])
    thread = after(lambda: bool(marks), gate)
    with pytest.raises(RuntimeError, match="the device is gone"):
        work.wait()
    thread.join(10)
    assert marks == [("begin", "device work"), ("end", "device work")]
