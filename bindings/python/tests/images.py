"""Images in folders and shards, for tests of loaders."""

from __future__ import annotations

import io
import pathlib
import struct
import tarfile

import numpy
from PIL import Image


def picture(number: int, height: int = 24, width: int = 32) -> numpy.ndarray:
    """An image that tells its number: smooth, so that JPEG changes little."""
    rows, columns = numpy.mgrid[0:height, 0:width]
    bands = [(rows * 3 + columns * 2 + number * step) % 200 for step in (5, 11, 17)]
    return numpy.stack(bands, axis=-1).astype(numpy.uint8)


def encoded(number: int, kind: str = "JPEG", **size: int) -> bytes:
    """The image in a file's bytes."""
    file = io.BytesIO()
    Image.fromarray(picture(number, **size)).save(file, kind)
    return file.getvalue()


def folder(path: pathlib.Path, count: int, classes: tuple[str, ...] = ("ant", "bee", "cat"), kind: str = "JPEG") -> str:
    """So many images, in a folder for each class in turn. In the order of their paths they are numbered 0, 1, 2, ..."""
    each = -(-count // len(classes))
    for number in range(count):
        place = path / classes[number // each]
        place.mkdir(parents=True, exist_ok=True)
        ending = {"JPEG": "jpg", "PNG": "png"}[kind]
        (place / f"{number:05}.{ending}").write_bytes(encoded(number, kind))
    return str(path)


def tar_shards(path: pathlib.Path, count: int, shards: int) -> str:
    """So many images in shards of WebDataset, of ten classes."""
    path.mkdir(parents=True, exist_ok=True)
    each = -(-count // shards)
    for shard in range(shards):
        with tarfile.open(path / f"part-{shard:03}.tar", "w") as file:
            for number in range(shard * each, min(count, (shard + 1) * each)):
                for ending, content in (("jpg", encoded(number)), ("cls", str(number % 10).encode())):
                    entry = tarfile.TarInfo(f"{number:06}.{ending}")
                    entry.size = len(content)
                    file.addfile(entry, io.BytesIO(content))
    return str(path / f"part-{{000..{shards - 1:03}}}.tar")


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _crc(content: bytes) -> int:
    """CRC-32C, masked as TFRecord wants it."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def tfrecord(path: pathlib.Path, count: int) -> str:
    """So many images in one file of `tf.train.Example`, with TensorFlow's usual names, of ten classes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        for number in range(count):
            image = _field(1, _field(1, encoded(number)))
            label = _field(3, _field(1, _varint(number % 10)))
            entries = [_field(1, key) + _field(2, value) for key, value in
                       ((b"image/encoded", image), (b"image/class/label", label))]
            example = _field(1, b"".join(_field(1, entry) for entry in entries))
            head = struct.pack("<Q", len(example))
            file.write(head + struct.pack("<I", _crc(head)) + example + struct.pack("<I", _crc(example)))
    return str(path)
