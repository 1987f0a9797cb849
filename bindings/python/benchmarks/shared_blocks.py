"""A training whose ranks read one data set from a slow store: with and without blocks from each other.

``python bindings/python/benchmarks/shared_blocks.py`` draws JPEG images, writes them into shards of WebDataset, and
serves these over HTTP on loopback with a limit for all connections together, as a store or a link to it has one. Then
``farandole train`` runs an epoch of the smallest network from there, with ``FARANDOLE_DATA_PEERS`` 0 (every rank reads
for itself), auto and 1, in turns. What is printed of each: the time of the whole command, and how many times the data
set left the server; medians over all rounds, and all values.

The command must be built with the trainer and remote storage: ``cargo build --release -p farandole-cli --features
train,remote``. It is the one of ``FARANDOLE_COMMAND``, or ``farandole`` on the path.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import statistics
import subprocess
import tarfile
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy
from PIL import Image

#: Bytes that are sent at once by a connection of the server.
PIECE = 64 << 10


def jpeg(number: int) -> bytes:
    """An image of 500 x 375 that JPEG makes as small as a photograph."""
    random = numpy.random.default_rng(number)
    small = Image.fromarray(random.integers(0, 256, (15, 20, 3), dtype=numpy.uint8))
    pixels = numpy.asarray(small.resize((500, 375), Image.Resampling.BICUBIC), dtype=numpy.float32)
    pixels = pixels + random.normal(0, 6, pixels.shape)
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(numpy.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def write_shards(folder: Path, images: int, shards: int) -> int:
    """Writes the shards; returns their bytes."""
    with ProcessPoolExecutor() as pool:
        files = list(pool.map(jpeg, range(images), chunksize=50))
    for shard in range(shards):
        with tarfile.open(folder / f"part-{shard:03}.tar", "w") as tar:
            for number in range(shard, images, shards):
                for ending, content in (("jpg", files[number]), ("cls", str(number % 10).encode())):
                    entry = tarfile.TarInfo(f"{number:06}.{ending}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))
    return sum(path.stat().st_size for path in folder.iterdir())


class Store(ThreadingHTTPServer):
    """Serves files of a folder by ranges; all connections together send so many bytes in a second."""

    daemon_threads = True

    def __init__(self, folder: Path, bytes_per_second: float, latency: float) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.rate, self.latency = folder, bytes_per_second, latency
        self.lock = threading.Lock()
        self.sent = 0
        self.free_at = 0.0

    def wait_for_turn(self, count: int) -> None:
        """Waits until so many bytes may be sent."""
        with self.lock:
            self.sent += count
            self.free_at = max(self.free_at, time.monotonic()) + count / self.rate
            until = self.free_at
        time.sleep(max(0.0, until - time.monotonic()))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Store

    def do_HEAD(self) -> None:
        self.head(200, (self.server.folder / Path(self.path).name).stat().st_size)

    def do_GET(self) -> None:
        time.sleep(self.server.latency)
        path = self.server.folder / Path(self.path).name
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"])
        assert wanted, self.headers["Range"]
        first, last = (int(number) for number in wanted.groups())
        self.head(206, last + 1 - first, f"bytes {first}-{last}/{path.stat().st_size}")
        with path.open("rb") as file:
            file.seek(first)
            left = last + 1 - first
            while left:
                piece = file.read(min(left, PIECE))
                self.server.wait_for_turn(len(piece))
                self.wfile.write(piece)
                left -= len(piece)

    def head(self, status: int, length: int, content_range: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", '"one"')
        self.send_header("Content-Length", str(length))
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()

    def log_message(self, *words: object) -> None:
        """Says nothing."""


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--ranks", type=int, default=4)
    words.add_argument("--images", type=int, default=2000)
    words.add_argument("--shards", type=int, default=8)
    words.add_argument("--megabytes-per-second", type=float, default=25, help="of the store, over all connections")
    words.add_argument("--latency-ms", type=float, default=20, help="of the store, before each answer")
    words.add_argument("--rounds", type=int, default=3)
    args = words.parse_args()
    command = os.environ.get("FARANDOLE_COMMAND", "farandole")
    with tempfile.TemporaryDirectory() as folder:
        stored = write_shards(Path(folder), args.images, args.shards)
        store = Store(Path(folder), args.megabytes_per_second * 1e6, args.latency_ms / 1e3)
        threading.Thread(target=store.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{store.server_address[1]}/part-{{000..{args.shards - 1:03}}}.tar"
        train = [command, "train", "-np", str(args.ranks), "--threads", "1", "--workers", "2", "--model", "lenet"]
        train += ["--batch", "16", "--epochs", "1", "--data", url]
        print(f"{args.images} images, {stored / 1e6:.1f} MB; store of {args.megabytes_per_second:.0f} MB/s")
        print("$", " ".join(train), flush=True)
        seconds: dict[str, list[float]] = {}
        times: dict[str, list[float]] = {}
        for _ in range(args.rounds):
            for switch in ("0", "auto", "1"):
                before, began = store.sent, time.monotonic()
                environment = dict(os.environ, FARANDOLE_DATA_PEERS=switch)
                done = subprocess.run(train, env=environment, capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stdout + done.stderr
                seconds.setdefault(switch, []).append(time.monotonic() - began)
                times.setdefault(switch, []).append((store.sent - before) / stored)
    for switch, values in seconds.items():
        each = ", ".join(f"{value:.1f}" for value in values)
        read = ", ".join(f"{value:.2f}" for value in times[switch])
        print(
            f"FARANDOLE_DATA_PEERS={switch:4}  {statistics.median(values):6.1f} s ({each}), "
            f"read {statistics.median(times[switch]):.2f} times ({read})"
        )


if __name__ == "__main__":
    main()
