"""`Loader`: a rank's batches, epoch by epoch.

**Epochs.** Every `iter(loader)` is the next epoch; `set_epoch` says which one, as that of `DistributedSampler` does.
The order of an epoch and what is done to its samples follow from the seed and the epoch's number alone.

**States.** A state is the epoch and how many of its batches were handed out, so what was made ahead is not lost: it is
made again. It goes on with any number of workers, and of ranks if the global batch stays the same; whatever else would
change which samples come is compared, and refused.

**Threads** start with an epoch and end with it, with its iterator, with the loader, or with the interpreter.
"""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from farandole import _native
from farandole.data import frameworks, sharding
from farandole.data.device import Ahead, pinned
from farandole.data.transforms import Transform, steps
from farandole.phases import phase

__all__ = ["Loader"]

#: Threads of loaders end before the interpreter does.
_loaders: weakref.WeakSet[Loader] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for loader in list(_loaders):
        loader.close()


class Loader:
    """Batches `(images, labels)` of what lies at `source`: a folder of images with one folder for each class, a shard
    (TFRecord, tar of WebDataset, ...), or the shards of a pattern such as ``"train-{000..127}.tar"``.

    - `batch_size`: samples of this rank in a step; `global_batch_size`: of all ranks, where it is not that times the
      number of ranks.
    - `transforms`: of `farandole.data.transforms`; all images must have one size behind them.
    - `shuffle`, `seed`; `shuffle_block` and `shuffle_window`: where reading at random is slow, blocks of so many
      consecutive samples are shuffled, and samples within windows of so many blocks.
    - `num_workers`: threads; the cores of this rank if nothing is said; with 0 the iterating thread does the work.
    - `prefetch_factor`: batches that are made ahead, by all workers together.
    - `drop_last`: without the last global batch of an epoch where it is not full. Else it is shared among all ranks,
      and some may get an empty batch, so that all make the same number of steps.
    - `rank`, `world_size`: of the job where nothing is said; of `torch.distributed`; else one.
    - `dtype`: "float32", "float16", "bfloat16" or "uint8"; `layout`: "NCHW" or "NHWC"; `channels`: 3 or 1.
    - `framework`: "torch" where it is installed, "numpy", "jax" or "tensorflow".
    - `pin_memory`, `device`: of torch: batches in pinned memory, or on their device, one ahead.
    - `on_error`: "raise" names a sample that cannot be read; "skip" takes the next in its stead, warns and counts.
    - `mixup`, `cutmix`: parameters of the Beta distribution; labels of classes become shares, `[batch, classes]`.
    - `image_field`, `label_field`, `label_kind`, `class_names`, `num_classes`: which fields of a record are meant, and
      what labels mean ("found", "class", "multi-label", "multi-hot", "value", "none").
    - `split`: "train" or "test" of a source that is divided: by folders, names of shards, or a table's column `split`.
    - `index`: the folder where indexes of shards are kept; beside them if nothing is said; "" for nowhere.
    - `decode`: False gives the bytes of records as they are, as a list.
    - `map`: a function in Python of a sample (image as array, or bytes) and its label. It runs in the iterating
      thread, or in `map_workers` threads, which share the interpreter's lock: slow. `collate_fn` makes a batch of what
      it returns.
    - `return_indices`: `(images, labels, indices)`, with the numbers of the records.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        batch_size: int,
        transforms: Transform | Sequence[Transform] | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        shuffle_block: int | None = None,
        shuffle_window: int = 16,
        num_workers: int | None = None,
        prefetch_factor: int | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        global_batch_size: int | None = None,
        dtype: str = "float32",
        layout: str = "NCHW",
        channels: int = 3,
        framework: str | None = None,
        pin_memory: bool = False,
        device: Any = None,
        on_error: str = "raise",
        mixup: float = 0.0,
        cutmix: float = 0.0,
        image_field: str | None = None,
        label_field: str | None = None,
        label_kind: str = "found",
        class_names: Sequence[str] = (),
        num_classes: int | None = None,
        split: str | None = None,
        index: str | os.PathLike[str] | None = None,
        decode: bool = True,
        map: Callable[[Any, Any], Any] | None = None,
        map_workers: int = 0,
        collate_fn: Callable[[Sequence[Any]], Any] | None = None,
        return_indices: bool = False,
    ) -> None:
        if on_error not in ("raise", "skip"):
            raise ValueError(f'on_error is "raise" or "skip", not {on_error!r}')
        dtype = str(dtype).removeprefix("torch.")
        self.batch_size = batch_size
        self.rank, self.world_size = sharding.place(rank, world_size)
        self.num_workers = sharding.cores() if num_workers is None else num_workers
        self.prefetch_factor = self._usual_prefetch() if prefetch_factor is None else prefetch_factor
        self.framework = frameworks.usual() if framework is None else framework
        if self.framework != "torch" and (pin_memory or device is not None):
            raise ValueError("pin_memory and device are for batches of torch")
        self.pin_memory, self.device = pin_memory, device
        self._convert = frameworks.converter(self.framework, dtype)
        self._map, self._return_indices = map, return_indices
        self._threads = ThreadPoolExecutor(map_workers, "map") if map is not None and map_workers > 0 else None
        self._collate: Callable[..., Any] | None = collate_fn
        if map is not None and collate_fn is None:
            self._collate = frameworks.collate(self.framework)
        self.dataset = _native.DataRecords.open(
            os.fspath(source), image=image_field, label=label_field, kind=label_kind, class_names=list(class_names),
            classes=num_classes, split=split, index=None if index is None else os.fspath(index),
        )
        self._feed = _native.DataFeed(
            self.dataset,
            content=(steps(transforms), channels, dtype, layout) if decode else None,
            batch=batch_size, global_batch=global_batch_size, rank=self.rank, world_size=self.world_size,
            drop_last=drop_last, workers=self.num_workers, prefetch=self.prefetch_factor, seed=seed, shuffle=shuffle,
            nearby=None if shuffle_block is None else (shuffle_block, shuffle_window),
            skip_broken=on_error == "skip", mixup=mixup, cutmix=cutmix,
        )
        #: What must be the same for a state to go on exactly.
        self._law = {
            "global_batch_size": self._feed.global_batch, "samples": self._feed.samples, "seed": seed,
            "shuffle": shuffle, "shuffle_block": shuffle_block, "shuffle_window": shuffle_window,
            "fingerprint": self.dataset.fingerprint,
        }
        self._epoch, self._step = 0, 0
        self._begun = False
        self._current: weakref.ref[_Epoch] | None = None
        _loaders.add(self)

    def _usual_prefetch(self) -> int:
        # All workers make each batch together: two ahead do, or as many as give every worker two samples.
        return max(2, -(-2 * self.num_workers // max(1, self.batch_size)))

    @property
    def classes(self) -> list[str]:
        """The names of classes, by number."""
        return self.dataset.class_names

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The numbers of classes, by name."""
        return {name: number for number, name in enumerate(self.classes)}

    def __len__(self) -> int:
        """Batches of a whole epoch: the same on all ranks."""
        return len(self._feed)

    def set_epoch(self, epoch: int) -> None:
        """The next `iter` is this epoch. A state that was loaded in the middle of it still counts."""
        if epoch != self._epoch or self._begun:
            self._epoch, self._step, self._begun = epoch, 0, False

    def __iter__(self) -> Iterator[Any]:
        if self._begun:
            self._epoch, self._step = self._epoch + 1, 0
        self._begun = True
        self._feed.start(self._epoch, self._step)
        epoch = _Epoch(self)
        self._current = weakref.ref(epoch)
        return epoch

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: the epoch, and how many of its batches were handed out. At the end of an epoch it is the
        beginning of the next."""
        over = self._begun and self._step >= len(self)
        epoch, step = (self._epoch + 1, 0) if over else (self._epoch, self._step)
        return {"epoch": epoch, "step": step, **self._law}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next `iter` goes on where this state was."""
        for name, value in self._law.items():
            if name not in state:
                raise ValueError(f"this is no state of a farandole.data.Loader: it has no {name!r}")
            if state[name] != value:
                hint = " (say global_batch_size=, where the number of ranks has changed)" if "batch" in name else ""
                raise ValueError(f"the state was saved with {name} {state[name]!r}, and this is {value!r}{hint}")
        self._feed.stop()
        self._epoch, self._step, self._begun = state["epoch"], state["step"], False

    def stats(self) -> dict[str, Any]:
        """Sums since the loader was made: samples, bytes, seconds of all workers by stage, how long workers waited for
        the program and the program for workers, and the memory of batches, now and at most."""
        return {**self._feed.stats(), "workers": self.num_workers}

    def close(self) -> None:
        """Ends the threads. Another `iter` starts them again."""
        self._feed.stop()

    def __repr__(self) -> str:
        return f"<farandole.data.Loader of {self.dataset.describe()}, rank {self.rank} of {self.world_size}>"

    def _is_current(self, epoch: _Epoch) -> bool:
        return self._current is not None and self._current() is epoch

    def _next(self) -> Any:
        """The next batch as the program wants it, or none."""
        with phase("input wait"):
            batch = self._feed.next_batch()
        for notice in self._feed.take_notices():
            warnings.warn(notice, RuntimeWarning, stacklevel=4)
        if batch is None:
            return None
        images, labels = batch.take()
        made: tuple[Any, ...] = (images if isinstance(images, list) else self._convert(images), self._convert(labels))
        if self._map is not None:
            made = self._mapped(made)
        elif self._return_indices:
            made = (*made, self._convert(batch.take_indices()))
        return pinned(made) if self.pin_memory and self.device is None else made

    def _mapped(self, made: tuple[Any, ...]) -> Any:
        assert self._map is not None and self._collate is not None
        run = self._threads.map if self._threads is not None else map
        labels = made[1].tolist() if hasattr(made[1], "tolist") else made[1]
        samples = list(run(self._map, made[0], labels))
        return self._collate(samples) if samples else made


class _Epoch:
    """The batches of one epoch. Threads end when nobody has it any more."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._batches: Iterator[Any] = _Batches(loader)
        if loader.device is not None:
            self._batches = Ahead(self._batches, loader.device)

    def __iter__(self) -> _Epoch:
        return self

    def __next__(self) -> Any:
        loader = self._loader
        if not loader._is_current(self):
            raise RuntimeError("another epoch of this loader was begun since: one loader has one iterator at a time")
        batch = next(self._batches)
        loader._step += 1
        return batch

    def __len__(self) -> int:
        """How many are left."""
        return max(0, len(self._loader) - self._loader._step)

    def __del__(self) -> None:
        loader = getattr(self, "_loader", None)
        if loader is not None and loader._current is not None and loader._current() in (None, self):
            loader.close()


class _Batches:
    """The batches of the loader, until they end. It does not keep its epoch."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        batch = self._loader._next()
        if batch is None:
            raise StopIteration
        return batch
