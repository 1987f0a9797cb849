"""Batches of `farandole.data.Loader` as tensors of each framework, and shards that others write and read."""

from __future__ import annotations

import io
import pathlib
import subprocess
import tarfile
from typing import Any

import images
import jax
import numpy
import pyarrow
import pyarrow.parquet
import pytest
import tensorflow
import torch
from farandole.data import Loader
from farandole.data import transforms as T
from jobs import command, environment

OTHERS = ["numpy", "jax", "tensorflow"]
COUNT = 26


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return images.folder(tmp_path_factory.mktemp("folder"), COUNT)


def load(source: str, framework: str, dtype: str = "float32", batch: int = 8, **words: Any) -> Loader:
    change: list[Any] = [T.RandomResizedCrop(12), T.RandomHorizontalFlip()]
    if dtype != "uint8":
        change.append(T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    words = {"num_workers": 2, "seed": 5, "return_indices": True, **words}
    return Loader(source, batch, change, framework=framework, dtype=dtype, **words)


def plain(tensor: Any) -> numpy.ndarray:
    """The numbers of a tensor of any framework; 16 bits become 32, exactly."""
    if isinstance(tensor, torch.Tensor):
        return (tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor).numpy()
    if isinstance(tensor, tensorflow.Tensor):
        is_half = tensor.dtype in (tensorflow.bfloat16, tensorflow.float16)
        return (tensorflow.cast(tensor, tensorflow.float32) if is_half else tensor).numpy()
    array = numpy.asarray(tensor)
    return array.astype(numpy.float32) if array.dtype.itemsize == 2 else array


def kind(tensor: Any) -> str:
    return str(getattr(tensor.dtype, "name", tensor.dtype)).removeprefix("torch.")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
@pytest.mark.parametrize("framework", OTHERS)
def test_batches_are_those_of_torch(folder: str, framework: str, dtype: str, layout: str) -> None:
    if (framework, dtype) == ("numpy", "bfloat16"):
        with pytest.raises(ValueError, match="NumPy has no bfloat16"):
            load(folder, framework, dtype)
        return
    drop_last = layout == "NHWC"
    # All are kept: memory that a tensor shares is not used again.
    batches = list(load(folder, framework, dtype, layout=layout, drop_last=drop_last))
    expected = list(load(folder, "torch", dtype, layout=layout, drop_last=drop_last))
    assert [len(labels) for _, labels, _ in batches] == ([8, 8, 8] if drop_last else [8, 8, 8, 2])
    assert len(batches) == len(expected)
    for one, other in zip(batches, expected, strict=True):
        assert type(one[0]).__module__.split(".")[0].removesuffix("lib") == framework
        assert kind(one[0]) == dtype and one[0].shape[1:] == ((3, 12, 12) if layout == "NCHW" else (12, 12, 3))
        for left, right in zip(one, other, strict=True):
            assert numpy.array_equal(plain(left), plain(right))


@pytest.mark.parametrize("framework", [*OTHERS, "torch"])
def test_ranks_without_samples_in_the_last_step_have_empty_batches(folder: str, framework: str) -> None:
    whole = list(load(folder, "torch", batch=12))
    ranks = [list(load(folder, framework, batch=3, rank=rank, world_size=4)) for rank in range(4)]
    assert sorted(len(rank[-1][1]) for rank in ranks) == [0, 0, 1, 1]
    assert [tuple(rank[-1][0].shape) for rank in ranks].count((0, 3, 12, 12)) == 2
    for step, expected in enumerate(whole):
        for place, right in enumerate(expected):
            together = numpy.concatenate([plain(rank[step][place]) for rank in ranks])
            assert numpy.array_equal(together, plain(right))


@pytest.mark.parametrize("framework", OTHERS)
def test_a_state_goes_on_in_every_framework(folder: str, framework: str) -> None:
    expected = list(load(folder, "torch"))
    loader = load(folder, framework)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    other = load(folder, framework, num_workers=1)
    other.load_state_dict(state)
    rest = list(other)
    assert len(rest) == 3
    for one, right in zip(rest, expected[1:], strict=True):
        assert all(numpy.array_equal(plain(a), plain(b)) for a, b in zip(one, right, strict=True))


def test_a_jitted_function_and_a_tf_function_take_batches(folder: str) -> None:
    expected = [float(x.double().sum()) for x, _, _ in load(folder, "torch")]
    total = jax.jit(lambda x: x.sum())
    assert numpy.allclose([float(total(x)) for x, _, _ in load(folder, "jax")], expected, rtol=1e-4, atol=1e-2)
    graph = tensorflow.function(tensorflow.reduce_sum)
    assert numpy.allclose([float(graph(x)) for x, _, _ in load(folder, "tensorflow")], expected, rtol=1e-4, atol=1e-2)


def convert(source: str, target: pathlib.Path, to: str) -> list[pathlib.Path]:
    """The shards that our command writes."""
    words = [command(), "data", "convert", source, str(target), "--to", to, "--shards", "2"]
    done = subprocess.run(words, env=environment(), capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return sorted(target.glob(f"*.{to}"))


def written(source: str) -> list[tuple[bytes, int]]:
    """The images of a folder and the numbers of their classes, in the order of paths."""
    files = sorted(pathlib.Path(source).glob("*/*.jpg"))
    classes = sorted({file.parent.name for file in files})
    return [(file.read_bytes(), classes.index(file.parent.name)) for file in files]


def records(source: str) -> list[tuple[bytes, int]]:
    dataset = Loader(source, 1, decode=False, index="").dataset
    return [dataset.read(number) for number in range(len(dataset))]


def test_tensorflow_reads_our_tfrecord_files(folder: str, tmp_path: pathlib.Path) -> None:
    shards = convert(folder, tmp_path / "out", "tfrecord")
    features = {
        "image/encoded": tensorflow.io.FixedLenFeature([], tensorflow.string),
        "image/class/label": tensorflow.io.FixedLenFeature([], tensorflow.int64),
        "image/class/text": tensorflow.io.FixedLenFeature([], tensorflow.string),
    }
    found = []
    for record in tensorflow.data.TFRecordDataset([str(shard) for shard in shards]):
        example = tensorflow.io.parse_single_example(record, features)
        name = example["image/class/text"].numpy().decode()
        found.append((example["image/encoded"].numpy(), int(example["image/class/label"])))
        assert name == ["ant", "bee", "cat"][found[-1][1]]
    assert found == written(folder)
    assert tensorflow.io.decode_jpeg(found[0][0]).shape == (24, 32, 3)


def test_we_read_tfrecord_files_of_tensorflow(folder: str, tmp_path: pathlib.Path) -> None:
    train = tensorflow.train

    def bytes_feature(value: bytes) -> Any:
        return train.Feature(bytes_list=train.BytesList(value=[value]))

    path = tmp_path / "theirs.tfrecord"
    with tensorflow.io.TFRecordWriter(str(path)) as writer:
        for image, label in written(folder):
            number = train.Feature(int64_list=train.Int64List(value=[label]))
            feature = {"image/encoded": bytes_feature(image), "image/class/label": number,
                       "image/filename": bytes_feature("ä".encode())}
            writer.write(train.Example(features=train.Features(feature=feature)).SerializeToString())
    assert records(str(path)) == written(folder)


def test_pyarrow_reads_our_parquet_files(folder: str, tmp_path: pathlib.Path) -> None:
    shards = convert(folder, tmp_path / "out", "parquet")
    table = pyarrow.concat_tables([pyarrow.parquet.read_table(shard) for shard in shards])
    rows = table.to_pylist()
    assert [(row["image"]["bytes"], row["label"]) for row in rows] == written(folder)


@pytest.mark.parametrize("words", [{"compression": "none"}, {"compression": "snappy"}, {"compression": "gzip"},
                                   {"compression": "none", "use_dictionary": False, "data_page_version": "2.0"},
                                   {"compression": "snappy", "row_group_size": 5, "write_page_index": True}])
def test_we_read_parquet_files_of_pyarrow(folder: str, tmp_path: pathlib.Path, words: dict[str, Any]) -> None:
    rows = written(folder)
    pictures = [{"bytes": image, "path": None} for image, _ in rows]
    table = pyarrow.table({"image": pictures, "label": pyarrow.array([label for _, label in rows], pyarrow.int64())})
    path = tmp_path / "theirs.parquet"
    pyarrow.parquet.write_table(table, path, **words)
    assert records(str(path)) == rows


def test_tar_files_are_those_of_others(folder: str, tmp_path: pathlib.Path) -> None:
    found = []
    for shard in convert(folder, tmp_path / "out", "tar"):
        with tarfile.open(shard) as file:
            contents = {entry.name: file.extractfile(entry).read() for entry in file}  # type: ignore[union-attr]
        keys = sorted({name.split(".")[0] for name in contents})
        found += [(contents[f"{key}.jpg"], int(contents[f"{key}.cls"])) for key in keys]
    assert found == written(folder)


def test_arrays_of_numpy_are_read(tmp_path: pathlib.Path) -> None:
    pixels = numpy.stack([images.picture(number) for number in range(10)])
    labels = numpy.arange(10) % 3
    numpy.savez(tmp_path / "stored.npz", images=pixels, labels=labels)
    numpy.savez_compressed(tmp_path / "packed.npz", images=pixels, labels=labels)
    numpy.save(tmp_path / "images.npy", pixels)
    numpy.save(tmp_path / "labels.npy", labels)
    for name in ("stored.npz", "packed.npz", "images.npy"):
        loader = Loader(tmp_path / name, 10, [T.CenterCrop((24, 32))], shuffle=False, dtype="uint8", layout="NHWC",
                        framework="numpy")
        (found, classes), = loader
        assert numpy.array_equal(found, pixels) and numpy.array_equal(classes, labels), name


def test_a_table_says_what_images_show(tmp_path: pathlib.Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(images.encoded(number))
    (tmp_path / "labels.csv").write_text("file,age,split\n2.jpg,30.5,train\n0.jpg,20,train\n3.jpg,40,test\n")
    with pytest.raises(OSError, match="say which part"):
        load(str(tmp_path), "numpy")
    loader = load(str(tmp_path), "numpy", shuffle=False, split="train")
    (_, ages, _), = loader
    assert ages.tolist() == [30.5, 20.0] and io.BytesIO(loader.dataset.read(0)[0]).read(2) == b"\xff\xd8"
    assert len(load(str(tmp_path), "numpy", split="test")) == 1
    with pytest.raises(ValueError, match="split"):
        load(str(tmp_path), "numpy", split="half")
