"""Loading images: Farandole beside its peers, in one run.

``python bindings/python/benchmarks/data_peers.py`` (`cargo xtask data-bench` builds what it needs and runs it) makes a
folder of JPEG images, 500 x 375, as ImageNet's mostly are, and starts a process for every contestant
(`data_contestant.py`). They take turns, an epoch each, so that whatever else the machine does hits all alike; the first
epoch of each is not counted. Everybody decodes, takes a random part of an image, brings it to 224 x 224, mirrors it by
chance and normalises it, in batches of float32, with one thread or worker for each of the same cores.

- `farandole`: `farandole.data.Loader`.
- `torch-pil`: torch's `DataLoader` with `ImageFolder`, Pillow and torchvision's transforms.
- `torch-io`: the same with `torchvision.io.decode_jpeg` and the transforms of tensors.
- `webdataset`: shards of WebDataset, with Pillow and torchvision's transforms.
- `tf.data`: with `decode_and_crop_jpeg`.
- `dali`: NVIDIA DALI, on the processor.

What is printed are medians over all rounds: samples per second, and samples per second of processor time, which is what
counts where loading shares its cores with something else. A contestant that is not installed is an error;
``--without NAME,NAME`` leaves some out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from data_contestant import CONTESTANTS

#: Classes of the images, and shards of those who want shards.
CLASSES, SHARDS = 10, 8

SCRIPT = Path(__file__).with_name("data_contestant.py")


@dataclass
class Contestant:
    """The process of one that takes part."""

    name: str
    process: subprocess.Popen[str]
    epochs: list[dict[str, float]] = field(default_factory=list)

    def run(self) -> dict[str, float]:
        requests, answers = self.process.stdin, self.process.stdout
        assert requests is not None and answers is not None
        with contextlib.suppress(BrokenPipeError):
            requests.write("epoch\n")
            requests.flush()
        line = answers.readline()
        if not line:
            package = CONTESTANTS[self.name][1]
            raise SystemExit(
                f"{self.name} has ended; what it said is above. If it is not installed: pip install {package}, or "
                f"--without {self.name}"
            )
        answer: dict[str, float] = json.loads(line)
        return answer


def make_images(folder: Path, count: int) -> None:
    """Images with the detail of photographs, in a folder for each class, and in shards."""
    import numpy
    from PIL import Image

    chance = numpy.random.default_rng(1)
    (folder / "tar").mkdir(parents=True)
    shards = [tarfile.open(folder / "tar" / f"{number:03}.tar", "w") for number in range(SHARDS)]
    for number in range(count):
        # Noise of several scales, each half as strong as the next coarser one: about 60 KB as JPEG.
        image = numpy.zeros((384, 512, 3))
        for scale in (64, 32, 16, 8, 4, 2):
            noise = chance.normal(size=(384 // scale, 512 // scale, 3))
            image += scale**0.8 * noise.repeat(scale, 0).repeat(scale, 1)
        image = (128 + 3 * image).clip(0, 255)[:375, :500]
        file = io.BytesIO()
        Image.fromarray(image.astype(numpy.uint8)).save(file, "JPEG", quality=90)
        place = folder / "images" / str(number % CLASSES)
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:06}.jpg").write_bytes(file.getvalue())
        for ending, content in (("jpg", file.getvalue()), ("cls", str(number % CLASSES).encode())):
            entry = tarfile.TarInfo(f"{number:06}.{ending}")
            entry.size = len(content)
            shards[number % SHARDS].addfile(entry, io.BytesIO(content))
    for shard in shards:
        shard.close()


@contextlib.contextmanager
def contestants(names: list[str], folder: Path, words: argparse.Namespace) -> Iterator[list[Contestant]]:
    started: list[Contestant] = []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    try:
        for name in names:
            line = [sys.executable, str(SCRIPT), name, str(folder), str(words.batch), str(words.cores)]
            pipe: Any = subprocess.PIPE
            process = subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True, env=environment)
            started.append(Contestant(name, process))
        yield started
    finally:
        for contestant in started:
            end(contestant.process)


def end(process: subprocess.Popen[str]) -> None:
    """A process ends when its standard input does."""
    closed: IO[str] | None = process.stdin
    if closed is not None:
        with contextlib.suppress(BrokenPipeError):
            closed.close()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def report(taking_part: list[Contestant]) -> bool:
    """Prints all. Returns whether we are the fastest by both figures."""
    rates: dict[str, tuple[float, float]] = {}
    print(f"\n  {'':<12}{'epochs':>7}{'samples/s':>11}{'ratio':>7}{'samples/processor-s':>21}{'ratio':>7}")
    for contestant in taking_part:
        wall = statistics.median(epoch["samples"] / epoch["seconds"] for epoch in contestant.epochs)
        processor = statistics.median(epoch["samples"] / epoch["processor"] for epoch in contestant.epochs)
        rates[contestant.name] = (wall, processor)
    ours = rates.get("farandole", next(iter(rates.values())))
    for contestant in taking_part:
        wall, processor = rates[contestant.name]
        row = f"  {contestant.name:<12}{len(contestant.epochs):>7}{wall:>11.1f}{ours[0] / wall:>7.2f}"
        print(row + f"{processor:>21.1f}{ours[1] / processor:>7.2f}")
    print("  ratio: farandole's figure divided by this one")
    return all(ours[0] >= wall and ours[1] >= processor for wall, processor in rates.values())


def read_words() -> argparse.Namespace:
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--samples", type=int, default=1000, help="images of an epoch")
    words.add_argument("--rounds", type=int, default=5, help="epochs of each contestant that count")
    words.add_argument("--batch", type=int, default=64, help="images of a batch")
    words.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="cores and workers of each")
    words.add_argument("--without", default="", help="contestants that do not take part, with commas")
    words.add_argument("--check", action="store_true", help="fail if ours is not the fastest by both figures")
    return words.parse_args()


def main() -> int:
    words = read_words()
    without = [name for name in words.without.split(",") if name]
    unknown = set(without) - set(CONTESTANTS)
    if unknown:
        raise SystemExit(f"--without {', '.join(unknown)}: contestants are {', '.join(CONTESTANTS)}")
    names = [name for name in CONTESTANTS if name not in without]
    with tempfile.TemporaryDirectory(prefix="data-peers-") as path:
        folder = Path(path)
        make_images(folder, words.samples)
        size = sum(file.stat().st_size for file in (folder / "images").rglob("*.jpg")) / words.samples
        print(
            f"{words.cores} cores, load average {os.getloadavg()[0]:.1f}, "
            f"{words.samples} images of {size / 1e3:.0f} KB, batches of {words.batch}; "
            f"left out: {', '.join(without) or 'nobody'}",
            flush=True,
        )
        with contestants(names, folder, words) as taking_part:
            for number in range(words.rounds + 1):
                for contestant in taking_part:
                    epoch = contestant.run()
                    if epoch["samples"] != words.samples:
                        raise SystemExit(f"{contestant.name} gave {epoch['samples']} samples of {words.samples}")
                    if number > 0:
                        contestant.epochs.append(epoch)
            fastest = report(taking_part)
    if not fastest:
        print("\nfarandole is not the fastest by both figures")
    return int(words.check and not fastest)


if __name__ == "__main__":
    sys.exit(main())
