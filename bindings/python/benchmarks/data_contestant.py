"""One contestant of `data_peers.py`: loads all images of a folder when it is told to, and says what it took.

Every contestant does the same: JPEG files, decoded, a random part of each brought to 224 x 224, mirrored by chance,
normalised, in batches of float32. A request is a line on standard input, an answer is one of JSON on standard output.

What it takes is the time until the last batch is in the program's hands, and the processor time of this process and of
all its children, dead or alive.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

MEAN, STD, SIDE = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225], 224

#: Makes the batches of an epoch, again and again: each is (images, labels), or something of which `len` is asked.
Epoch = Callable[[], Iterable[Any]]


def farandole(folder: Path, batch: int, workers: int) -> Epoch:
    from farandole.data import Loader
    from farandole.data import transforms as T

    transforms = [T.RandomResizedCrop(SIDE), T.RandomHorizontalFlip(), T.Normalize(MEAN, STD)]
    loader = Loader(folder / "images", batch, transforms, num_workers=workers)
    return lambda: (len(labels) for _, labels in loader)


def _torch(dataset: Any, batch: int, workers: int, **words: Any) -> Epoch:
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(dataset, batch, num_workers=workers, persistent_workers=True, **words)
    return lambda: (len(labels) for _, labels in loader)


def torch_pil(folder: Path, batch: int, workers: int) -> Epoch:
    from torchvision import datasets

    return _torch(datasets.ImageFolder(str(folder / "images"), _of_pil()), batch, workers, shuffle=True)


def _of_pil() -> Any:
    from torchvision import transforms as T

    steps = [T.RandomResizedCrop(SIDE), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]
    return T.Compose(steps)


def torch_io(folder: Path, batch: int, workers: int) -> Epoch:
    import torch
    from torchvision import datasets
    from torchvision.io import ImageReadMode, decode_jpeg, read_file
    from torchvision.transforms import v2 as T

    def load(path: str) -> Any:
        return decode_jpeg(read_file(path), ImageReadMode.RGB)

    steps = [T.RandomResizedCrop(SIDE, antialias=True), T.RandomHorizontalFlip(),
             T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)]
    dataset = datasets.ImageFolder(str(folder / "images"), T.Compose(steps), loader=load)
    return _torch(dataset, batch, workers, shuffle=True)


def webdataset(folder: Path, batch: int, workers: int) -> Epoch:
    import webdataset as wds

    shards = sorted(str(path) for path in (folder / "tar").iterdir())
    dataset = wds.WebDataset(shards, shardshuffle=len(shards), nodesplitter=None).shuffle(1000).decode("pil")
    dataset = dataset.to_tuple("jpg", "cls").map_tuple(_of_pil(), int).batched(batch)
    return _torch(dataset, None, min(workers, len(shards)))  # type: ignore[arg-type]


def tf_data(folder: Path, batch: int, workers: int) -> Epoch:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(workers)
    tf.config.threading.set_inter_op_parallelism_threads(workers)
    names = sorted(str(path) for path in (folder / "images").rglob("*.jpg"))
    labels = [int(Path(name).parent.name) for name in names]
    mean, std = tf.constant(MEAN) * 255.0, tf.constant(STD) * 255.0

    def make(name: Any, label: Any) -> Any:
        data = tf.io.read_file(name)
        whole = tf.zeros([1, 1, 4]) + [0.0, 0.0, 1.0, 1.0]
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(data), whole, area_range=(0.08, 1.0), aspect_ratio_range=(3 / 4, 4 / 3),
            max_attempts=10,
        )
        window = tf.stack([begin[0], begin[1], size[0], size[1]])
        image = tf.image.decode_and_crop_jpeg(data, window, channels=3)
        image = tf.image.random_flip_left_right(tf.image.resize(image, (SIDE, SIDE), antialias=True))
        return (image - mean) / std, label

    data = tf.data.Dataset.from_tensor_slices((names, labels)).shuffle(len(names))
    data = data.map(make, num_parallel_calls=workers).batch(batch).prefetch(2)
    return lambda: (int(labels.shape[0]) for _, labels in data)


def dali(folder: Path, batch: int, workers: int) -> Epoch:
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    @pipeline_def(batch_size=batch, num_threads=workers, device_id=None)
    def pipeline() -> Any:
        data, labels = fn.readers.file(file_root=str(folder / "images"), random_shuffle=True, name="reader")
        decoded = fn.decoders.image_random_crop(data, device="cpu", random_area=[0.08, 1.0],
                                                random_aspect_ratio=[3 / 4, 4 / 3])
        resized = fn.resize(decoded, size=[SIDE, SIDE], antialias=True)
        made = fn.crop_mirror_normalize(resized, dtype=types.FLOAT, output_layout="CHW",
                                        mirror=fn.random.coin_flip(), mean=[255 * one for one in MEAN],
                                        std=[255 * one for one in STD])
        return made, labels

    built = pipeline()
    built.build()
    batches = DALIGenericIterator([built], ["images", "labels"], reader_name="reader", auto_reset=True,
                                  last_batch_policy=LastBatchPolicy.PARTIAL)
    return lambda: (len(made[0]["labels"]) for made in batches)


#: Who takes part, and what has to be installed for it.
CONTESTANTS: dict[str, tuple[Callable[[Path, int, int], Epoch], str]] = {
    "farandole": (farandole, "torch"),
    "torch-pil": (torch_pil, "torchvision"),
    "torch-io": (torch_io, "torchvision"),
    "webdataset": (webdataset, "webdataset"),
    "tf.data": (tf_data, "tensorflow-cpu"),
    "dali": (dali, "nvidia-dali-cuda120"),
}


def processor_seconds() -> float:
    """Of this process and all its descendants, those included that have ended and were waited for."""
    parents, used = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = sum(int(field) for field in fields[11:15])
    ours = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in ours} - ours
        if not more:
            return sum(used.get(pid, 0) for pid in ours) / os.sysconf("SC_CLK_TCK")
        ours |= more


def main() -> None:
    name, folder, batch, cores = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    # What libraries print shall not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    epoch = CONTESTANTS[name][0](folder, batch, cores)
    for _ in sys.stdin:
        processor, begun = processor_seconds(), time.perf_counter()
        samples = sum(epoch())
        seconds = time.perf_counter() - begun
        answer = {"samples": samples, "seconds": seconds, "processor": processor_seconds() - processor}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
