"""What each operation of `torch.distributed` asks the engine for: `FarandoleBackend`.

Tensors are lent as one dimension, so ranks need not agree on shapes; where they must agree on sizes, the engine checks.
Collectives of tensors on a GPU are carried out there (`on_device`) where the engine can; all other tensors that are not
contiguous host memory get host copies (`farandole.torch.lent_memory`). Element types that the
engine does not compute with travel as bytes; complex numbers are reduced as pairs of real ones.

Roots and peers are ranks of the process group here, as torch gives them.

Not here: how calls are named (`call_names`), and how their results are waited for (`work`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Optional

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from farandole import _native
from farandole.exceptions import FarandoleError
from farandole.exports import Sum
from farandole.torch import device_memory, lent_memory, run_ahead, staging
from farandole.torch.distributed import monitored_barrier
from farandole.torch.distributed.call_names import CallNames
from farandole.torch.distributed.membership import Membership
from farandole.torch.distributed.on_device import DeviceOperations
from farandole.torch.distributed.reductions import Fold, folding_of, reduction_of
from farandole.torch.distributed.tensors import (
    Target,
    Tensor,
    as_numbers,
    as_travelling,
    fill,
    flat,
    form,
    joined,
    member,
    received,
    tensor_of,
)
from farandole.torch.distributed.work import Finish, FutureThread, Work, as_backend_error, timeout_of
from farandole.torch.lent_memory import Loan

__all__ = ["FarandoleBackend", "NAME"]

NAME = "farandole"


CAN_BE_REGISTERED = type(vars(Backend).get("__init__")) is not type(object.__init__)
"""Whether this torch lets a backend be written in Python. Without, the process group has the operations alone."""


class _InPlace(staging.BatchWork):
    """Contiguous tensors in host memory that are reduced in place, and what finishes them. One object for both: a
    program may have thousands in flight, and Python's garbage collector visits each."""

    __slots__ = ("host", "name", "tensors")

    def __init__(
        self, batch: _native.BatchHandle, name: str, host: _native.HostTensors, tensors: list[Tensor]
    ) -> None:
        super().__init__(batch)
        self.name, self.host = name, host
        self.tensors = tensors if len(tensors) > 1 else tensors[0]

    def __call__(self, _results: Sequence[_native.Result]) -> Sequence[Tensor]:
        tensors = self.tensors if isinstance(self.tensors, list) else [self.tensors]
        moved = self.host.first_moved(tensors)
        if moved is not None:
            lent_memory.raise_moved(self.name if len(tensors) == 1 else f"{self.name}_{moved}")
        return tensors


class _Ranks:
    """What a backend that torch knows nothing of has in place of torch's class."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


class FarandoleBackend(Backend if CAN_BE_REGISTERED else _Ranks):  # type: ignore[misc]  # Known at run time.
    """The operations of one process group."""

    # What torch asks a backend for. All of them must be here: torch's own properties ask themselves without end in a
    # subclass that is written in Python.
    supports_splitting = True
    supports_coalescing = False
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False
    _supports_time_estimate = False

    def __init__(self, membership: Membership, store: Any, timeout: timedelta) -> None:
        super().__init__(membership.rank, membership.size)
        self._membership = membership
        self._store = store
        self._timeout = timeout
        self._names = CallNames()
        self._under_name: dict[str, staging.RequestWork] = {}
        """The last requests under each name that may come again."""
        self._devices = DeviceOperations(membership, self._name, self._begin)
        self._futures = FutureThread()
        self._barriers = itertools.count()

    # Reductions.

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        """Each tensor becomes the combination of all ranks' tensors, in place."""
        if tensors[0].is_sparse:
            return self.allreduce_sparse(tensors, opts)
        return self.allreduce_coalesced(tensors, opts)

    def allreduce_sparse(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        """As `allreduce`, for the sum of a sparse tensor: every rank adds up the elements of all."""
        [tensor] = tensors
        if reduction_of(opts, tensors) != (Sum, 1.0):
            raise ValueError("The backend farandole reduces sparse tensors by SUM only.")
        own = tensor.detach().coalesce()
        # Element by element, because ranks have different numbers of them.
        parts = [own.indices().t(), own.values()]
        loans = [lent_memory.lend(part) for part in parts]
        name = self._name("allreduce_sparse", own.dtype)
        batch, group = (name, len(loans)), self._membership.group

        def ask() -> list[_native.Handle]:
            return [
                _native.allgather(member(name, batch, index), *flat(loan), group, batch)
                for index, loan in enumerate(loans)
            ]

        def finish(results: list[_native.Result]) -> Sequence[Tensor]:
            indices, elements = (tensor_of(result).view(-1, *part.shape[1:]) for result, part in zip(results, parts))
            total = torch.sparse_coo_tensor(indices.t(), elements, tensor.shape).coalesce()
            # Not through a detached one: the elements of a sparse tensor are its own.
            with torch.no_grad():
                tensor.copy_(total)
            return tensors

        return self._submit(name, loans, ask, finish, opts)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        """As `allreduce`, for tensors that are reduced together."""
        fold = folding_of(opts, tensors)
        if fold is not None:
            return self._fold_all(tensors, fold, opts)
        op, prescale = reduction_of(opts, tensors)
        collective = ("allreduce", op, prescale, 1.0)
        tensors = list(tensors)
        as_they_are = None if device_memory.lies_there(tensors[0]) else _native.host_tensors(tensors)
        if as_they_are is not None:
            return self._allreduce_as_they_are(as_they_are, tensors, collective, opts)
        views = [as_numbers(tensor) for tensor in tensors]
        signature = ("allreduce", op, form(views))
        if self._devices.takes(views, collective):
            return self._devices.in_place(signature, collective, views, tensors, opts)
        loans = [lent_memory.lend_to_write(view) for view in views]
        name = self._name(*signature, requests=len(loans))
        batch = (name, len(loans)) if len(loans) > 1 else None

        def ask() -> list[_native.Handle]:
            how = (op, prescale, 1.0, self._membership.group, batch, 0, None)
            return _native.allreduce_many(
                [(member(name, batch, index), *flat(loan), *how) for index, loan in enumerate(loans)]
            )

        def finish(_results: list[_native.Result]) -> Sequence[Tensor]:
            for loan in loans:
                loan.copy_back(name)
            return tensors

        return self._submit(name, loans, ask, finish, opts)

    def _allreduce_as_they_are(
        self, host: _native.HostTensors, tensors: list[Tensor], collective: tuple[str, int, float, float], opts: Any
    ) -> Work:
        """Reduces contiguous tensors in host memory by one call, with one handle."""
        _, op, prescale, postscale = collective
        name = self._name("allreduce", op, host.form(), requests=len(tensors))
        group = self._membership.group

        def ask() -> _InPlace:
            return _InPlace(host.allreduce(name, op, prescale, postscale, group), name, host, tensors)

        return self._begin(name, ask, None, opts)

    def reduce(self, tensors: Sequence[Tensor], opts: Any) -> Work:
        """The root's tensor becomes the combination of all ranks' tensors. The others stay as they are."""
        [tensor] = tensors
        fold = folding_of(opts, tensors)
        if fold is not None:
            return self._fold_all(tensors if self.rank() == opts.rootRank else [tensor.detach().clone()], fold, opts)
        op, prescale = reduction_of(opts, tensors)
        view, root, group = as_numbers(tensor), opts.rootRank, self._membership.group
        signature, collective = ("reduce", op, root, form([view])), ("reduce", root, op, prescale, 1.0)
        if self._devices.takes([view], collective):
            return self._devices.in_place(signature, collective, [view], tensors, opts, only_on=root)
        name = self._name(*signature)
        loan = lent_memory.lend_to_write(view) if self.rank() == root else lent_memory.lend(view)

        def ask() -> list[_native.Handle]:
            return [_native.reduce(name, *flat(loan), root, op, prescale, 1.0, group)]

        def finish(_results: list[_native.Result]) -> Sequence[Tensor]:
            if self.rank() == root:
                loan.copy_back(name)
            return tensors

        return self._submit(name, [loan], ask, finish, opts)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """The output becomes this rank's part of the combination of all ranks' inputs."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        """As `reduce_scatter_single`, for tensors that are reduced together."""
        for output, tensor in zip(outputs, inputs):
            if output.numel() * self.size() != tensor.numel() or output.dtype != tensor.dtype:
                raise ValueError(
                    f"reduce_scatter: the input ({tensor.numel()} of {tensor.dtype}) must be {self.size()} times as "
                    f"large as the output ({output.numel()} of {output.dtype})."
                )
        fold = folding_of(opts, inputs)
        if fold is not None:
            return self._fold_parts(outputs, inputs, fold, opts)
        op, prescale = reduction_of(opts, inputs)
        views = [as_numbers(tensor) for tensor in inputs]
        signature = ("reduce_scatter", op, form(views))
        collective = ("reducescatter", op, prescale, 1.0)
        if self._devices.takes(views, collective):
            into = [[output] for output in outputs]
            return self._devices.into(signature, collective, views, into, opts, rows=self.size())
        loans = [lent_memory.lend(view) for view in views]
        targets = [Target([output], loan) for output, loan in zip(outputs, loans)]
        name = self._name(*signature, requests=len(loans))
        batch = (name, len(loans)) if len(loans) > 1 else None

        def ask() -> list[_native.Handle]:
            group, rows = self._membership.group, self.size()
            return [
                _native.reducescatter(
                    member(name, batch, at), *flat(loan, rows), op, prescale, 1.0, group, batch, target.direct
                )
                for at, (loan, target) in enumerate(zip(loans, targets))
            ]

        def finish(results: list[_native.Result]) -> Sequence[Tensor]:
            for result, target in zip(results, targets):
                target.finish(result)
            return outputs

        return self._submit(name, loans, ask, finish, opts)

    def reduce_scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any = None) -> Work:
        """The output becomes the combination of the tensors that all ranks have for this rank."""
        [output], [parts] = outputs, inputs
        if all(part.numel() == output.numel() for part in parts):
            return self.reduce_scatter_single(output, joined(parts), opts)
        # The engine deals rows out evenly; for uneven parts every rank gets everything and takes its own.
        whole = joined(parts)
        work = self.allreduce_coalesced([whole], opts)
        start = sum(part.numel() for part in parts[: self.rank()])

        def finish(_tensors: Sequence[Tensor]) -> Sequence[Tensor]:
            fill([output], whole[start : start + parts[self.rank()].numel()])
            return outputs

        return work.then(finish)

    def _fold_all(self, tensors: Sequence[Tensor], fold: Fold, opts: Any) -> Work:
        """Each tensor becomes the combination of all ranks' tensors, by an operation that the engine does not have."""
        gathered = [tensor.new_empty(self.size(), *tensor.shape) for tensor in tensors]

        def finish(_gathered: Sequence[Tensor]) -> Sequence[Tensor]:
            for tensor, rows in zip(tensors, gathered):
                tensor.detach().copy_(functools.reduce(fold, rows.unbind()))
            return tensors

        return self._allgather([[rows] for rows in gathered], tensors, opts).then(finish)

    def _fold_parts(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], fold: Fold, opts: Any) -> Work:
        """As `_fold_all`, of this rank's part of each tensor."""
        totals = [tensor.detach().clone() for tensor in inputs]

        def finish(_totals: Sequence[Tensor]) -> Sequence[Tensor]:
            for output, total in zip(outputs, totals):
                fill([output.detach()], total.reshape(self.size(), -1)[self.rank()])
            return outputs

        return self._fold_all(totals, fold, opts).then(finish)

    # Moves.

    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> Work:
        """Each tensor becomes the root's."""
        [tensor] = tensors
        view = as_travelling(tensor)
        root, group = self._membership.ranks[opts.rootRank], self._membership.group
        signature = ("broadcast", opts.rootRank, form([view]))
        if self._devices.takes([view], ("broadcast", root)):
            return self._devices.in_place(signature, ("broadcast", root), [view], tensors, opts)
        loan = lent_memory.lend_to_write(view)
        name = self._name(*signature)

        def finish(_results: list[_native.Result]) -> Sequence[Tensor]:
            loan.copy_back(name)
            return tensors

        def ask() -> list[_native.Handle]:
            return [_native.broadcast(name, *flat(loan), root, group, None)]

        return self._submit(name, [loan], ask, finish, opts)

    def allgather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None) -> Work:
        """Each list of outputs becomes the inputs of all ranks, which may differ in size."""
        return self._allgather(list(outputs), inputs, opts)

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        """As `allgather`, for tensors that are gathered together. outputs: for each rank, a tensor for each input."""
        return self._allgather([list(of_input) for of_input in zip(*outputs)], inputs, opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """The output becomes the inputs of all ranks, one after the other."""
        return self._allgather([[output]], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        """As `all_gather_single`, for tensors that are gathered together."""
        return self._allgather([[output] for output in outputs], inputs, opts)

    def _allgather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any) -> Work:
        """outputs: for each input, the tensors that take the result, in order."""
        views = [as_travelling(tensor) for tensor in inputs]
        signature = ("allgather", *(view.dtype for view in views))
        if self._devices.takes(views, ("allgather",)):
            return self._devices.into(signature, ("allgather",), views, outputs, opts)
        loans = [lent_memory.lend(view) for view in views]
        targets = [Target(of_input, loan) for of_input, loan in zip(outputs, loans)]
        name = self._name(*signature, requests=len(loans))
        batch = (name, len(loans)) if len(loans) > 1 else None

        def ask() -> list[_native.Handle]:
            group = self._membership.group
            return [
                _native.allgather(member(name, batch, index), *flat(loan), group, batch, target.direct)
                for index, (loan, target) in enumerate(zip(loans, targets))
            ]

        def finish(results: list[_native.Result]) -> Sequence[Tensor]:
            for result, target in zip(results, targets):
                target.finish(result)
            return list(itertools.chain.from_iterable(outputs))

        return self._submit(name, loans, ask, finish, opts)

    def gather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any) -> Work:
        """On the root, the outputs become the inputs of all ranks, which may differ in size."""
        [tensor] = inputs
        targets = list(outputs[0]) if self.rank() == opts.rootRank else []
        view, root, group = as_travelling(tensor), opts.rootRank, self._membership.group
        signature = ("gather", root, tensor.dtype)
        if self._devices.takes([view], ("gather", root)):
            return self._devices.into(signature, ("gather", root), [view], [targets], opts)
        loan = lent_memory.lend(view)
        name = self._name(*signature)

        def ask() -> list[_native.Handle]:
            return [_native.gather(name, *flat(loan), root, group)]

        return self._submit(name, [loan], ask, lambda results: received(targets, results[0]), opts)

    def scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any) -> Work:
        """The output becomes the root's input for this rank; these may differ in size."""
        [output] = outputs
        is_root = self.rank() == opts.rootRank
        parts = [as_travelling(part) for part in inputs[0]] if is_root else [as_travelling(output.new_empty(0))]
        splits = [part.numel() for part in parts] if is_root else None
        root, group = opts.rootRank, self._membership.group
        view, signature = joined(parts), ("scatter", root, output.dtype)
        if self._devices.takes([view], ("scatter", root, None)):
            return self._devices.into(signature, ("scatter", root, splits), [view], [outputs], opts)
        loan = lent_memory.lend(view)
        name = self._name(*signature)

        def ask() -> list[_native.Handle]:
            return [_native.scatter(name, *flat(loan), root, splits, group)]

        return self._submit(name, [loan], ask, lambda results: received(outputs, results[0]), opts)

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> Work:
        """Each output becomes the input that its rank has for this one."""
        return self._exchange(joined(inputs), [part.numel() for part in inputs], list(outputs), opts)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> Work:
        """Rows of the input go to all ranks, and theirs for this rank come into the output. Without sizes, in equal
        parts."""
        sent = self._row_splits("input", input, input_split_sizes)
        expected = self._row_splits("output", output, output_split_sizes)
        return self._exchange(input, sent, [output], opts, expected)

    def _row_splits(self, role: str, tensor: Tensor, splits: Sequence[int]) -> list[int]:
        """How many elements of a tensor each rank has."""
        rows = tensor.shape[0] if tensor.dim() else 0
        if not splits:
            if rows % self.size():
                raise ValueError(f"alltoall: {rows} rows of the {role} cannot be dealt to {self.size()} ranks evenly.")
            splits = [rows // self.size()] * self.size()
        if sum(splits) != rows or len(splits) != self.size():
            raise ValueError(f"alltoall: the {role} has {rows} rows, its sizes are {list(splits)}.")
        row = tensor.numel() // rows if rows else 0
        return [count * row for count in splits]

    def _exchange(
        self,
        source: Tensor,
        splits: Sequence[int],
        targets: Sequence[Tensor],
        opts: Any,
        expected: Optional[Sequence[int]] = None,
    ) -> Work:
        """Sends `splits` elements of the source to each rank; what comes in fills the targets, in order. expected: how
        much must come from each rank."""
        view = as_travelling(source)
        # Bytes where the type only travels: as many for each element.
        scale = view.numel() // source.numel() if source.numel() else 1
        splits = [count * scale for count in splits]

        def check_splits(received_splits: Sequence[int]) -> None:
            came = [count // scale for count in received_splits]
            if expected is not None and came != list(expected):
                raise ValueError(f"alltoall: {list(expected)} elements were expected from the ranks, {came} came.")

        if self._devices.takes([view], ("alltoall", None)):
            collective, signature = ("alltoall", splits), ("alltoall", source.dtype)

            def check(handle: _native.DeviceHandle) -> None:
                [(_, received_splits)] = handle.results()
                check_splits(received_splits)

            return self._devices.into(signature, collective, [view], [targets], opts, check=check)
        name = self._name("alltoall", source.dtype)
        loan = lent_memory.lend(view)
        target = Target(targets, loan)

        def finish(results: list[_native.Result]) -> Sequence[Tensor]:
            [result] = results
            check_splits(result.received_splits)
            target.finish(result)
            return targets

        def ask() -> list[_native.Handle]:
            return [_native.alltoall(name, *flat(loan), splits, self._membership.group, target.direct)]

        return self._submit(name, [loan], ask, finish, opts)

    # Barriers.

    def barrier(self, opts: Any = None) -> Work:
        """Complete when all ranks have called it."""
        name, group = self._name("barrier"), self._membership.group
        return self._submit(name, [], lambda: [_native.barrier(name, group)], lambda _results: [], opts)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Returns when all ranks have called it. Rank 0 raises the ranks that have not come in time, all of them with
        `wait_all_ranks`. It goes through the store, so that the job can go on."""
        limit = getattr(timeout, "timeout", timeout)
        limit = self._timeout if limit is None or limit < timedelta(0) else limit
        store = dist.PrefixStore(f"farandole/barrier/{next(self._barriers)}", self._store)
        monitored_barrier.wait(store, self.rank(), self.size(), limit, wait_all_ranks)

    # Point to point.

    def send(self, tensors: Sequence[Tensor], dst: int, tag: int) -> Work:
        """Sends a tensor to a rank, which receives as many elements with this tag."""
        [tensor] = tensors
        loan = lent_memory.lend(as_travelling(tensor))
        name, group = f"send to {dst}, tag {tag}", self._membership.group

        def ask() -> list[_native.Handle]:
            return [_native.send(name, *flat(loan), dst, tag, group)]

        return self._submit(name, [loan], ask, lambda _results: tensors, None)

    def recv(self, tensors: Sequence[Tensor], src: int, tag: int) -> Work:
        """Receives a tensor that a rank sends with this tag."""
        return self._recv(tensors, src, tag)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int) -> Work:
        """Receives a tensor that any rank sends with this tag; the work has the `source_rank`."""
        return self._recv(tensors, None, tag)

    def _recv(self, tensors: Sequence[Tensor], src: Optional[int], tag: int) -> Work:
        [tensor] = tensors
        loan = lent_memory.lend_to_write(as_travelling(tensor))
        name, group = f"recv from {'anybody' if src is None else src}, tag {tag}", self._membership.group

        def ask() -> list[_native.Handle]:
            return [_native.recv(name, *flat(loan), src, tag, group)]

        def finish(results: list[_native.Result]) -> Sequence[Tensor]:
            loan.copy_back(name)
            work.source = results[0].source
            return tensors

        work = self._submit(name, [loan], ask, finish, None)
        return work

    # The group itself.

    def getBackendName(self) -> str:
        """The name of the backend."""
        return NAME

    def name(self) -> str:
        """The name of the backend."""
        return NAME

    def set_timeout(self, timeout: timedelta) -> None:
        """The timeout of operations that have none of their own."""
        self._timeout = timeout

    def abort(self) -> None:
        """Ends all collectives of the job: those under way fail on all ranks."""
        if _native.is_initialized():
            _native.abort(f"the process group was aborted on rank {self.rank()}")

    def eager_connect_single_device(self, device: Optional[torch.device] = None) -> None:
        """Connects the ranks for this device. They are connected."""

    def part(self, store: Any, ranks: Sequence[int], timeout: timedelta) -> Optional[FarandoleBackend]:
        """The backend of a group of these ranks of this one; `None` on ranks that are not among them.

        store: for the new group alone.
        """
        if self.rank() not in ranks:
            return None
        return FarandoleBackend(self._membership.split(store, ranks), store, timeout)

    def shutdown(self) -> None:
        """Ends the group. The world ends with the process group that made it."""
        self._futures.stop()
        self._under_name.clear()
        self._membership.leave()

    # How it is done.

    def _name(self, *signature: Any, requests: int = 1) -> str:
        """The name of the next call, of so many requests. One that is still under way under this name is waited for."""
        name, may_be_under_way = self._names.next(signature, requests)
        if may_be_under_way:
            earlier = self._under_name.pop(name, None)
            if earlier is not None and not earlier.poll():
                earlier.wait_for(self._timeout.total_seconds())
        return name

    def _submit(
        self, name: str, loans: Sequence[Loan], ask: Callable[[], Sequence[_native.Handle]], finish: Finish, opts: Any
    ) -> Work:
        return self._begin(name, lambda: staging.submit(loans, ask), finish, opts)

    def _begin(self, name: str, ask: Callable[[], Any], finish: Optional[Finish], opts: Any) -> Work:
        """ask: submits, and gives a `staging.RequestWork`, which finishes itself where there is no `finish`."""
        try:
            run_ahead.sweep()
            requests = ask()
        except FarandoleError as error:
            raise as_backend_error(error) from None
        if self._names.comes_again(name):
            self._under_name[name] = requests
        limit = timeout_of(getattr(opts, "timeout", None), self._timeout)
        return Work(name, requests, finish or requests, limit, self._futures)
