"""Object stores against a server of somebody else's: moto's S3, read by the example `storage_cat`."""

from __future__ import annotations

import hashlib
import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from jobs import command, environment
from moto.server import ThreadedMotoServer

BUCKET = "training-data"
# Some blocks of the cache, the last one shorter, and more than one part of a large read.
LARGE = bytes(range(251)) * 80_000
KEYS = {"access": "AKIDOFTHETEST", "secret": "secret-of-the-test"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    s3: Any = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=KEYS["access"],
        aws_secret_access_key=KEYS["secret"],
    )
    s3.create_bucket(Bucket=BUCKET)
    s3.put_object(Bucket=BUCKET, Key="train/large.tar", Body=LARGE)
    s3.put_object(Bucket=BUCKET, Key="train/ä & b+c.txt", Body=b"a name with everything")
    s3.put_object(Bucket=BUCKET, Key="train/", Body=b"")
    s3.put_object(Bucket=BUCKET, Key="valid/one", Body=b"1")
    yield url
    server.stop()


def storage_cat(endpoint: str, *words: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    """The example, which lies beside the command."""
    program = pathlib.Path(command()).parent / "examples" / "storage_cat"
    variables = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEYS["access"],
        "AWS_SECRET_ACCESS_KEY": KEYS["secret"],
        "AWS_REGION": "us-east-1",
        **more,
    }
    return subprocess.run(
        [str(program), *words], env=environment(**variables), capture_output=True, timeout=60, check=False
    )


def test_objects_are_listed_and_read(endpoint: str) -> None:
    listed = storage_cat(endpoint, "list", f"s3://{BUCKET}/train/")
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.decode().splitlines() == [f"{len(LARGE)} train/large.tar", "22 train/ä & b+c.txt"]
    whole = storage_cat(endpoint, "cat", f"s3://{BUCKET}/train/large.tar")
    assert whole.returncode == 0, whole.stderr
    assert hashlib.sha256(whole.stdout).digest() == hashlib.sha256(LARGE).digest()
    part = storage_cat(endpoint, "cat", f"s3://{BUCKET}/train/large.tar", "12345678", "1000")
    assert part.stdout == LARGE[12345678:12346678]
    named = storage_cat(endpoint, "cat", f"s3://{BUCKET}/train/ä & b+c.txt")
    assert named.stdout == b"a name with everything"


def test_the_disk_keeps_blocks_for_the_next_process(endpoint: str, tmp_path: pathlib.Path) -> None:
    url = f"s3://{BUCKET}/train/large.tar"
    first = storage_cat(endpoint, "counts", url, FARANDOLE_DATA_CACHE=str(tmp_path))
    assert first.returncode == 0, first.stderr
    assert f"{len(LARGE)} bytes fetched" in first.stdout.decode()
    second = storage_cat(endpoint, "counts", url, FARANDOLE_DATA_CACHE=str(tmp_path))
    assert " 0 bytes fetched" in second.stdout.decode(), second.stderr


def test_what_is_missing_is_named(endpoint: str) -> None:
    bucket = storage_cat(endpoint, "list", "s3://no-such-bucket/")
    assert bucket.returncode == 1
    assert "there is no bucket or container no-such-bucket" in bucket.stderr.decode()
    key = storage_cat(endpoint, "cat", f"s3://{BUCKET}/train/none")
    assert f"s3://{BUCKET}/train/none" in key.stderr.decode()
    assert "there is no such object" in key.stderr.decode()
    assert KEYS["secret"] not in (bucket.stderr + key.stderr).decode()
