"""Steps that count on all ranks or on none, in a plain loop and without commits.

    training = hvd.elastic.Training(optimizer, model, sampler=sampler)
    for epoch in training.epochs(10):
        for images, labels in training.batches(loader):
            with training.step():
                optimizer.zero_grad()
                F.cross_entropy(model(images), labels).backward()
                optimizer.step()
        accuracy = training.call(test, model)

The state is what survivors have in memory: model, optimizer, sampler. Nothing is copied as long as nothing happens.

**What a step is.** A *block* is the body of `with training.step()`, or one `training.call`. A step counts on a rank in
the moment in which the optimizer has made it (`optimizer.step()` has returned), and the samples that were read for it
are used in the same moment: model and sampler never disagree. A block without a step of the optimizer (a scaler that
skips it) counts when it ends. A block holds all backward passes of its step; everything else that ranks do together
is in a block, too. In every block ranks wait for each other once at least, as they do for gradients. What else changes
the state (a scheduler's step) comes right after the optimizer's, before any other collective call: a rank may come out
of that one with an error, and its step counts.

**Why ranks agree.** Gradients of a step are averages over all ranks, or the optimizer does not step. When a rank dies,
some survivors may have all gradients of the step under way, and make it, while others hear of the death before. Both
then come to the boundary, at their next collective call at the latest, and enter the next generation of the job. There
they compare how many blocks they have completed (`farandole.elastic.agreement`). Those differ by one at most, because
nobody completes two blocks without the others. The rank that is ahead is whole, and sends its state to those behind
(`transfer`), for whom the step is then done. If nobody is ahead, all states have the same bits and nothing is sent; the
step was made by nobody, and is *repeated* or *dropped*: its samples are dealt anew to the ranks of now, or passed over.

Who has just started has completed nothing, and gets everything; so the first block of a job begins with a broadcast
from rank 0, and a process that joins needs no code of its own.

With `streamed=True` most of it comes before that, while the others go on (`streaming`): then the process has made
their steps when it is let in, and digests of all tensors say what it has not (`transfer.send_what_differs`).

**Who wants to join** is asked once for every step, in a collective that is begun after one step and looked at after the
next: it costs no wait, and all ranks see the same answer after the same step.

Invariant: after every block, all ranks have completed the same blocks, have the same parameters and optimizer state,
and the sampler's position is behind exactly the samples that are in the model (and those that were dropped).

Not here: optimizers with `op=Adasum`, in which each rank has momentum of its own, and several optimizers that take
turns; use `hvd.elastic.run` for them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Literal, Optional

import torch

from farandole.elastic import native
from farandole.elastic.agreement import NOTHING, Decision, Standing, decide, retry_pause
from farandole.elastic.follower import Note
from farandole.exceptions import HorovodInternalError
from farandole.torch.delta_optimizer import DeltaOptimizer
from farandole.torch.elastic import replay, transfer
from farandole.torch.elastic.parameter_check import ParameterCheck
from farandole.torch.elastic.sampler import ElasticBatchSampler, ElasticSampler
from farandole.torch.elastic.streaming import Streaming, Streams

__all__ = ["Step", "Training", "step"]

_log = logging.getLogger(__name__)

_of_thread = threading.local()
"""`training`: the one that this thread is at. Ranks compare standings of one training; a second one at the same time
would bring its own."""


class Step:
    """One step, as a context. `completed` says afterwards whether it counts."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.completed = False

    def __enter__(self) -> Step:
        self.training._begin_block(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return self.training._end_step(self, error)


class _Counters:
    """What else belongs to the state: how many steps the optimizer has made, and what the last call gave."""

    def __init__(self) -> None:
        self.steps = 0
        self.result: Any = None

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class Training:
    """A training that goes on when ranks leave or join. Makes no collective call before its first use.

    Arguments:
        optimizer: of torch; usually what `DistributedOptimizer` returned.
        model: what it trains. Without it, buffers (statistics of batches, say) do not reach ranks that join.
        sampler: the `ElasticSampler` of the loader.
        on_loss: what becomes of a step that a lost rank has ended: `"repeat"` deals its samples to the ranks that are
            left, `"drop"` passes over them.
        policy: called before the first step and after every change of the job (`LinearScaling`, `KeepTotalBatch`, or a
            function of yours). It may make collective calls, the same on all ranks: process sets are to be made anew
            in it. If a rank is lost meanwhile it is called again.
        check_every: look after every so many steps whether processes want to join.
        compare_every: compare the parameters of all ranks after every so many steps (`ParameterCheck`); 0: never.
        evict: whether ranks whose parameters differ leave, and the others go on.
        streamed: whether processes that join get the state before, while the others go on; `Streaming` has limits.
            Takes effect in an elastic job, and needs `hvd.init(elastic_join="later")`.
        others: whatever else belongs to the state and has `state_dict` and `load_state_dict`: a scheduler, a scaler.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module | None = None,
        *,
        sampler: ElasticSampler | None = None,
        on_loss: Literal["repeat", "drop"] = "repeat",
        policy: Callable[[], None] | None = None,
        check_every: int = 1,
        compare_every: int = 0,
        evict: bool = False,
        streamed: bool | Streaming = False,
        **others: Any,
    ) -> None:
        if isinstance(optimizer, DeltaOptimizer):
            raise ValueError(
                "hvd.elastic.Training needs the same optimizer state on all ranks, and with op=hvd.Adasum each rank "
                "has its own. Use hvd.elastic.run with a TorchState, or another op."
            )
        if on_loss not in ("repeat", "drop"):
            raise ValueError(f'on_loss is "repeat" or "drop", not {on_loss!r}')
        if check_every < 1:
            raise ValueError(f"check_every counts steps, from 1 on; {check_every} does not")
        self.optimizer, self.model, self.sampler = optimizer, model, sampler
        self._on_loss, self._policy, self._check_every = on_loss, policy, check_every
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        names = {} if model is None else {parameter: name for name, parameter in model.named_parameters()}
        named = [(names.get(parameter, f"number {number}"), parameter) for number, parameter in enumerate(parameters)]
        self._compare = ParameterCheck(named, compare_every, evict=evict)
        self._counters = _Counters()
        self._others = {**others, "farandole.counters": self._counters}
        self._completed, self._epoch, self._resets, self._attempts, self._size = NOTHING, 0, 0, 0, 0
        self._is_to_repeat = False
        #: Whether the next step is the first of its generation.
        self._is_first = False
        #: Without a sampler: how many batches of the epoch are used.
        self._batches_used = 0
        self._block: Optional[Step] = None
        #: Where the shares of now begin in the epoch, and how many samples behind that have been read by all ranks.
        self._begin, self._read = 0, 0
        self._check: Optional[Callable[[], list[int]]] = None
        self._streams: Optional[Streams] = None
        if streamed and native.may_stream():
            limits = streamed if isinstance(streamed, Streaming) else Streaming()
            self._streams = Streams(replay.Parts(model, optimizer, self._others), limits)
        optimizer.register_step_pre_hook(self._optimizer_steps)
        optimizer.register_step_post_hook(self._optimizer_stepped)

    # What scripts use

    @property
    def steps(self) -> int:
        """How many steps count, since the job began."""
        return self._counters.steps

    @property
    def epoch(self) -> int:
        """The epoch under way."""
        return self._epoch if self.sampler is None else self.sampler.epoch

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of `count`, each when it begins, or when this rank joins. Tells the sampler."""
        self.join()
        while (epoch := self.epoch) < count:
            yield epoch
            # A rank that was behind has been taken into the next one already.
            if self.epoch == epoch:
                self._set_place(epoch + 1, 0)
        # Nobody leaves while another one may still need its part of the last step.
        self.call(lambda: native.largest([0], "end"))
        if self._streams is not None:
            self._streams.note_boundary()

    def batches(self, loader: Iterable[Any], together: Any = None) -> Iterator[Any]:
        """The batches of a loader, through changes of the job. Make one step of each.

        With the loader of an `ElasticSampler`, what is left of the epoch is read anew after a change. Other loaders go
        on, within `epochs`: the batch of a step that is to be repeated comes again, and a rank that joins passes over
        as many batches as the others have used.

        together: brings lists of so many batches, for steps of several backward passes: a number, or a policy that has
            it in `passes`.
        """
        dealer = self._dealer_of(loader)
        self.join()
        if dealer is None:
            yield from self._own_batches(loader, together)
            return
        sampler, epoch = self.sampler, self.epoch
        assert sampler is not None, "invariant: there is a dealer, so there is a sampler"
        is_over = False
        while not is_over and self.epoch == epoch:
            deal, self._begin, self._read = sampler.deals, sampler.processed_num, 0
            is_over = True
            for group in _in_groups(self._counted(loader, dealer), together):
                yield group
                if sampler.deals != deal:
                    # What the loader has read ahead is for other ranks.
                    is_over = False
                    break

    def step(self) -> Step:
        """`with training.step():` around everything that makes one step."""
        return Step(self)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function that makes collective calls, an evaluation say; again if ranks are lost meanwhile. It
        changes nothing of the state. A rank that missed its end gets the result of one that did not."""
        block = Step(self)
        while not block.completed:
            self._begin_block(block)
            before = self._completed
            try:
                self._counters.result = function(*args, **kwargs)
                # Nobody is ahead by two blocks, also where the function makes no collective call.
                native.largest([0], "called")
                self._count(block)
                self._tell_followers()
            except HorovodInternalError as error:
                self._recover_from(error)
                block.completed = self._completed > before
            finally:
                self._block = None
        return self._counters.result

    def join(self) -> None:
        """Gets the state of the others, if this rank has none yet. All other methods begin with it.

        A process that was to join its job later does it here."""
        if self._completed == NOTHING:
            _of_thread.training = self
            native.join_job(None if self._streams is None else self._streams.follower.follow)
            self._agree_somehow()

    # Blocks

    def _begin_block(self, block: Step) -> None:
        self.join()
        if self._block is not None:
            raise RuntimeError("a step has begun within another: `with training.step()` and `call` do not nest")
        if getattr(_of_thread, "training", None) is not self:
            raise RuntimeError("another Training has begun, and ranks can go on with one alone: this one is over")
        self._block, self._is_to_repeat = block, False
        if self._streams is not None:
            self._streams.block_begins()

    def _optimizer_steps(self, _unused: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The optimizer is about to make a step, which must be one that ranks can agree about."""
        if self._completed != NOTHING and (self._block is None or self._block.completed):
            where = "outside of `with training.step()`" if self._block is None else "twice in one block"
            raise RuntimeError(f"optimizer.step() was called {where}: a block and a step belong together")
        if self._streams is not None and self._block is not None:
            # torch gives the optimizer as the first argument.
            self._streams.optimizer_steps(any(one is not None for one in [*args[1:], kwargs.get("closure")]))

    def _optimizer_stepped(self, *_unused: Any) -> None:
        block = self._block
        if block is not None and not block.completed:
            self._counters.steps += 1
            self._use(self._begin + self._read)
            self._count(block)

    def _count(self, block: Step) -> None:
        self._completed += 1
        self._attempts = 0
        block.completed = True
        if self._is_first:
            self._is_first = False
            native.note_stepped()

    def _end_step(self, block: Step, error: BaseException | None) -> bool:
        """Whether the error is dealt with."""
        try:
            if error is None:
                self._optimizer_stepped()
                self._tell_followers()
                self._look_around()
                return False
            if block.completed and self._streams is not None:
                self._streams.changed_otherwise()
            lost: Optional[BaseException] = error
        except HorovodInternalError as late:
            lost = late
        finally:
            self._block = None
        if not isinstance(lost, HorovodInternalError):
            return False
        if not native.enabled():
            if lost is error:
                return False
            raise lost
        before = self._completed
        self._recover_from(lost, to_drop=not block.completed)
        block.completed = block.completed or self._completed > before
        self._is_to_repeat = not block.completed and self._on_loss == "repeat"
        if not block.completed:
            native.note_step_lost("repeated" if self._is_to_repeat else "dropped")
        return True

    def _tell_followers(self) -> None:
        """A block was completed."""
        if self._streams is not None:
            self._streams.block_ended(Note(self._completed, self.epoch, self._position))

    @property
    def _position(self) -> int:
        return self._batches_used if self.sampler is None else self.sampler.processed_num

    def _look_around(self) -> None:
        """After a step: are parameters the same, and does anybody want to join?"""
        self._compare(self.steps)
        if not native.enabled():
            return
        check, self._check = self._check, None
        is_wanted = check is not None and check()[0] > 0
        if self.steps % self._check_every == 0:
            self._check = native.begin_largest([native.candidates()], "candidates")
        if is_wanted:
            self._next_generation()
            self._agree_somehow()

    # Recovery

    def _recover_from(self, error: HorovodInternalError, *, to_drop: bool = False) -> None:
        """Enters the next generation and agrees with it."""
        if not native.enabled():
            raise error
        time.sleep(retry_pause(self._attempts) or 0.0)
        self._attempts += 1
        self._next_generation()
        self.optimizer.zero_grad()
        self._agree_somehow(error, to_drop=to_drop and self._on_loss == "drop")

    def _next_generation(self) -> None:
        if self._streams is not None:
            self._streams.note_boundary()
        native.next_generation()
        self._resets += 1

    def _agree_somehow(self, error: HorovodInternalError | None = None, *, to_drop: bool = False) -> None:
        """Agrees with the ranks of this generation, or of a later one if more are lost meanwhile."""
        while True:
            try:
                self._agree(error, to_drop)
                if self._streams is not None:
                    self._streams.note_training()
                return
            except HorovodInternalError:
                if not native.enabled() or retry_pause(self._attempts) is None:
                    raise
            self._next_generation()

    def _agree(self, error: HorovodInternalError | None, to_drop: bool) -> None:
        self._check = None
        if to_drop:
            self._use(self._begin + self._read)
        own = self._standing()
        rows = native.gathered([*own, self._resets, self._attempts, self._size], "standings")
        decision = decide([Standing(*row[:4]) for row in rows])
        self._resets, self._attempts = max(row[4] for row in rows), max(row[5] for row in rows)
        if any(row[0] == NOTHING or row[6] != native.size() for row in rows):
            # Other ranks than before: what failed may go well now.
            self._attempts = min(self._attempts, 1)
        if error is not None and retry_pause(self._attempts) is None:
            raise error
        streamed = self._synchronise(decision, bool(own.is_streamed))
        self._completed, before, self._size = decision.completed, self._size, native.size()
        self._set_place(decision.epoch, decision.position)
        if self._policy is not None:
            self._policy()
        self._is_first = True
        native.note_synchronised()
        if native.rank() == 0 and self._resets > 0:
            is_lost = all(row[0] == NOTHING for row in rows)
            text = "nobody is left who has the state, and it begins anew" if is_lost else f"after step {self.steps}"
            _say(f"the training goes on with {native.size()} rank(s), {before or 'none'} before: {text}{streamed}")

    def _standing(self) -> Standing:
        """What this rank brings."""
        streamed = None if self._streams is None else self._streams.follower.standing
        if streamed is not None:
            return Standing(*streamed, is_streamed=1)
        return Standing(self._completed, self.epoch, self._position)

    def _synchronise(self, decision: Decision, is_streamed: bool) -> str:
        """Gives all ranks the state of the source. What is to be said of those to whom it was streamed."""
        what = (decision.source, self.model, self.optimizer, self._others)
        said = ""
        if decision.is_sent:
            transfer.send_or_receive(*what)
            if self._streams is not None and native.rank() != decision.source:
                self._streams.changed_otherwise()
        elif decision.is_to_compare:
            is_there = is_streamed and self._streams is not None and self._streams.follower.catch_up(decision.completed)
            sent = transfer.send_what_differs(*what, is_streamed=is_streamed)
            said = f"; new ranks had got the state before, but {sent.bytes} of {sent.of_bytes} bytes"
            if is_there and sent.missing:
                _say(
                    f"{len(sent.missing)} tensors that were streamed to this process are not those of rank "
                    f"{decision.source} ({', '.join(sorted(set(sent.missing))[:3])}), and are sent. Steps depend on "
                    "something else than parameters, gradients and the optimizer (a change of parameters by the "
                    "script?)"
                )
        if self._streams is not None:
            self._streams.follower.stop()
        return said

    def _set_place(self, epoch: int, position: int) -> None:
        """Goes on from there in the samples, with the ranks of now."""
        self._epoch, self._batches_used, self._begin, self._read = epoch, position, position, 0
        if self.sampler is not None:
            known = self.sampler.state_dict()
            if epoch != known["epoch"]:
                known["processed_indices"] = []
            self.sampler.load_state_dict({**known, "epoch": epoch, "processed_num": position})

    # Batches

    def _use(self, position: int) -> None:
        """What comes before this position of the epoch is used."""
        if self.sampler is None:
            self._batches_used = max(self._batches_used, position)
        else:
            self.sampler.processed_num = max(self.sampler.processed_num, position)

    def _dealer_of(self, loader: Any) -> Any:
        """What deals the samples of a loader; `None` if it is none of ours."""
        batch_sampler = getattr(loader, "batch_sampler", None)
        dealer = batch_sampler if isinstance(batch_sampler, ElasticBatchSampler) else getattr(loader, "sampler", None)
        if not isinstance(dealer, (ElasticSampler, ElasticBatchSampler)):
            return None
        if (dealer.sampler if isinstance(dealer, ElasticBatchSampler) else dealer) is not self.sampler:
            raise ValueError("the loader has an ElasticSampler that the training does not know: Training(sampler=...)")
        return dealer

    def _counted(self, loader: Any, dealer: Any) -> Iterator[Any]:
        batch_size = dealer.batch_size if isinstance(dealer, ElasticBatchSampler) else loader.batch_size
        for batch in loader:
            self._read = dealer.step_end(self._read, batch_size)
            yield batch

    def _own_batches(self, loader: Iterable[Any], together: Any) -> Iterator[Any]:
        epoch = self.epoch
        for number, group in enumerate(_in_groups(loader, together)):
            while self.epoch == epoch and number >= self._batches_used:
                self._begin, self._read, self._is_to_repeat = number, 1, False
                yield group
                if self.epoch == epoch and not self._is_to_repeat:
                    # Also a batch of which the script has made no step.
                    self._use(number + 1)


def step(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None = None, **options: Any) -> Step:
    """`with hvd.elastic.step(optimizer):` around everything that makes one step: a `Training` for this optimizer, made
    by the first call with what it is given, and its next step."""
    training = getattr(optimizer, "_elastic_training", None)
    if training is None:
        training = Training(optimizer, model, **options)
        optimizer._elastic_training = training  # type: ignore[attr-defined]
    return training.step()


def _in_groups(batches: Iterable[Any], together: Any) -> Iterator[Any]:
    if together is None:
        yield from batches
        return
    group: list[Any] = []
    for batch in batches:
        group.append(batch)
        # Asked for every group: it changes with the job.
        if len(group) >= getattr(together, "passes", together):
            yield group
            group = []
    if group:
        yield group


def _say(text: str) -> None:
    _log.warning("farandole: %s", text, stacklevel=2)
