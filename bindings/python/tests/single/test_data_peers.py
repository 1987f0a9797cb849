"""Ranks that read one shard of a web server: its blocks are read once for the whole job."""

from __future__ import annotations

import collections
import io
import re
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy
import pytest
from jobs import run_job
from PIL import Image

# The length of a block of the cache.
BLOCK = 4 << 20


def noise_shard(count: int) -> bytes:
    """Images of noise, which PNG cannot make smaller: several blocks."""
    shard = io.BytesIO()
    random = numpy.random.default_rng(7)
    with tarfile.open(fileobj=shard, mode="w") as file:
        for number in range(count):
            image = io.BytesIO()
            Image.fromarray(random.integers(0, 256, (500, 400, 3), dtype=numpy.uint8)).save(image, "PNG")
            for ending, content in (("png", image.getvalue()), ("cls", str(number % 10).encode())):
                entry = tarfile.TarInfo(f"{number:06}.{ending}")
                entry.size = len(content)
                file.addfile(entry, io.BytesIO(content))
    return shard.getvalue()


class Server(ThreadingHTTPServer):
    """Serves one shard by ranges, and counts how often each block is asked for."""

    def __init__(self, shard: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.shard = shard
        self.lock = threading.Lock()
        self.asked: collections.Counter[int] = collections.Counter()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_HEAD(self) -> None:
        self.answer(200, b"")

    def do_GET(self) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"])
        assert wanted, self.headers["Range"]
        first, last = (int(number) for number in wanted.groups())
        with self.server.lock:
            self.server.asked[first // BLOCK] += 1
        self.answer(206, self.server.shard[first : last + 1], f"bytes {first}-{last}/{len(self.server.shard)}")

    def answer(self, status: int, body: bytes, content_range: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", '"one"')
        self.send_header("Content-Length", str(len(body) if content_range else len(self.server.shard)))
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Says nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(noise_shard(60))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()


LOAD = """
    import os, sys, torch
    os.environ["FARANDOLE_DATA_PEERS"] = sys.argv[2]
    import farandole.torch as hvd
    from farandole.data import Loader
    from farandole.data import transforms as T
    hvd.init()
    hvd.allreduce(torch.zeros(1))
    loader = Loader(sys.argv[1], 6, transforms=[T.CenterCrop(8)], shuffle=False, rank=0, world_size=1, num_workers=2)
    # Nobody ends before all have what they need.
    seen = sum(int(x.sum() * 255) for x, _ in loader)
    hvd.allreduce(torch.zeros(1))
    print("sum", seen)
"""


@pytest.mark.parametrize("switch", ["1", "0"])
def test_a_block_is_read_once_for_all_ranks(server: Server, switch: str) -> None:
    url = f"http://127.0.0.1:{server.server_address[1]}/shard.tar"
    job = run_job(3, LOAD, seconds=90, arguments=[url, switch])
    assert job.code == 0, job.output + job.errors
    sums = {line for rank in range(3) for line in job.lines(rank) if line.startswith("sum")}
    assert len(sums) == 1, "all ranks have read the same"
    blocks = -(-len(server.shard) // BLOCK)
    assert set(server.asked) == set(range(blocks)) and blocks > 5
    expected = {"1": 1, "0": 3}[switch]
    assert set(server.asked.values()) == {expected}, server.asked
