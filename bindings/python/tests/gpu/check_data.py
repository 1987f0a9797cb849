"""Batches of `farandole.data.Loader` in pinned memory and on the device (`check.py`)."""

from __future__ import annotations

import pathlib
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from checking import seconds_of, spin

from farandole.data import Loader
from farandole.data import transforms as T

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import images

SAMPLES, BATCH = 96, 16


@contextmanager
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="check-data-") as path:
        yield images.folder(pathlib.Path(path), SAMPLES)


def loader(path: str, **words: Any) -> Loader:
    steps: list[T.Transform] = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]
    if words.get("dtype") != "uint8":
        steps.append(T.Normalize([0.5] * 3, [0.25] * 3))
    return Loader(path, BATCH, steps, rank=0, world_size=1, num_workers=2, **words)


def batches_on_device(device: torch.device) -> None:
    """Two epochs on the device have the bits of two epochs in host memory, in every type."""
    with folder() as path:
        for dtype in ("float32", "bfloat16", "uint8"):
            words: dict[str, Any] = {"dtype": dtype, "layout": "NHWC"} if dtype == "uint8" else {"dtype": dtype}
            there, here = loader(path, device=device, **words), loader(path, **words)
            for _epoch in range(2):
                # All batches are kept: no memory may be used again while a tensor has it.
                pairs = list(zip(there, here, strict=True))
                assert len(pairs) == SAMPLES // BATCH
                for (images_there, labels_there), (images_here, labels_here) in pairs:
                    assert images_there.device == device and labels_there.device == device
                    assert torch.equal(images_there.cpu(), images_here), dtype
                    assert torch.equal(labels_there.cpu(), labels_here)


def batches_pinned(device: torch.device) -> None:
    """Pinned batches are pinned, and copied by the device while the host goes on."""
    with folder() as path:
        for (pinned, labels), (plain, _) in zip(loader(path, pin_memory=True), loader(path), strict=True):
            assert pinned.is_pinned() and labels.is_pinned()
            assert torch.equal(pinned.to(device, non_blocking=True).cpu(), plain)


def batches_ahead(device: torch.device) -> None:
    """A batch is handed out while the device is busy: its copy is on a stream of its own, and the host does not wait.
    """
    with folder() as path:
        batches = iter(loader(path, device=device))
        next(batches)
        torch.cuda.synchronize()
        spin(device, 2.0)
        waited = seconds_of(lambda: next(batches))
        assert waited < 0.5, f"the host waited {waited:.2f} s for a busy device"
        torch.cuda.synchronize()
