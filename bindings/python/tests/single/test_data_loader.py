"""`farandole.data.Loader`: which batches come, in which order, and what they cost."""

import gc
import os
import subprocess
import sys
import threading
import warnings

import images
import numpy
import pytest
import torch
from farandole.data import Loader
from farandole.data import transforms as T
from jobs import environment, run_job
from waiting import wait_for

USUAL = [T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return images.folder(tmp_path_factory.mktemp("folder"), 50)


def walk(loader):
    return [(x.clone(), y.clone(), i.clone()) for x, y, i in loader]


def same(one, other):
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def load(source, batch=8, **words):
    words = {"transforms": USUAL, "return_indices": True, "num_workers": 2, **words}
    return Loader(source, batch, **words)


def threads():
    """The names of this process's threads, as the system has them."""
    return [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]


def loading():
    return [name for name in threads() if name.startswith("loader")]


def both_load():
    """Whether two threads load. A thread has its name a moment after it has begun."""
    return wait_for("two threads that load", lambda: len(loading()) == 2)


def test_a_folder_of_classes_gives_images_and_labels(folder):
    loader = load(folder)
    assert len(loader) == 7 and loader.classes == ["ant", "bee", "cat"]
    assert loader.class_to_idx == {"ant": 0, "bee": 1, "cat": 2}
    seen = []
    for x, y, i in loader:
        assert x.dtype == torch.float32 and x.shape[1:] == (3, 16, 16) and y.dtype == torch.int64
        assert torch.equal(y, i // 17)
        seen += i.tolist()
    assert sorted(seen) == list(range(50)) and seen != sorted(seen)


@pytest.mark.parametrize("words", [{}, {"shuffle": False}, {"shuffle_block": 4, "shuffle_window": 3},
                                   {"mixup": 0.2, "cutmix": 1.0}])
def test_workers_change_nothing(folder, words):
    expected = walk(load(folder, num_workers=0, **words))
    for workers in (1, 2, 5):
        same(walk(load(folder, num_workers=workers, **words)), expected)
    assert [len(y) for _, y, _ in expected] == [8] * 6 + [2]


def test_epochs_differ_and_set_epoch_names_them(folder):
    loader = load(folder)
    first, second = walk(loader), walk(loader)
    assert not torch.equal(first[0][2], second[0][2])
    loader.set_epoch(0)
    same(walk(loader), first)
    loader.set_epoch(1)
    same(walk(loader), second)
    assert not torch.equal(walk(load(folder, seed=1))[0][2], first[0][2])


def test_ranks_have_shares_of_the_same_global_batches(folder):
    whole = walk(load(folder, 12))
    for size in (2, 3, 4):
        ranks = [walk(load(folder, 12 // size, rank=rank, world_size=size)) for rank in range(size)]
        together = [tuple(torch.cat(part) for part in zip(*step, strict=True)) for step in zip(*ranks, strict=True)]
        same(together, whole)


def test_a_state_goes_on_exactly_also_on_other_ranks(folder):
    expected = walk(load(folder, 12))
    for taken in range(6):
        loader = load(folder, 12)
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        state = loader.state_dict()
        assert (state["epoch"], state["step"]) == ((0, taken) if taken < 5 else (1, 0))
        del batches
        other = load(folder, 12, num_workers=3)
        other.load_state_dict(state)
        other.set_epoch(state["epoch"])
        if taken < 5:
            same(walk(other), expected[taken:])
            assert other.state_dict()["epoch"] == 1
        ranks = []
        for rank in range(2):
            part = load(folder, 6, rank=rank, world_size=2)
            part.load_state_dict(state)
            ranks.append(walk(part))
        together = [tuple(torch.cat(part) for part in zip(*step, strict=True)) for step in zip(*ranks, strict=True)]
        if taken < 5:
            same(together, expected[taken:])


def test_a_state_of_something_else_is_refused(folder, tmp_path):
    state = load(folder, 12).state_dict()
    with pytest.raises(ValueError, match="global_batch_size 12, and this is 8 .*global_batch_size="):
        load(folder, 8).load_state_dict(state)
    with pytest.raises(ValueError, match="seed 0, and this is 3"):
        load(folder, 12, seed=3).load_state_dict(state)
    with pytest.raises(ValueError, match="samples"):
        load(images.folder(tmp_path, 9), 12).load_state_dict(state)
    with pytest.raises(ValueError, match="no state of a farandole.data.Loader"):
        load(folder, 12).load_state_dict({"epoch": 1})
    load(folder, 4, rank=0, world_size=2, global_batch_size=12).load_state_dict(state)


def test_a_last_batch_that_is_not_full_is_dropped_if_that_is_wanted(folder):
    loader = load(folder, drop_last=True)
    assert len(loader) == 6 and [len(y) for _, y, _ in loader] == [8] * 6
    # Two samples for four ranks: all make the step, and some have nothing in it.
    counts = [len(walk(load(folder, 2, rank=rank, world_size=4))[-1][1]) for rank in range(4)]
    assert counts == [0, 1, 0, 1]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_elements_and_layouts(folder, dtype, layout):
    transforms = [T.Resize((16, 20))]
    x, _, _ = next(iter(load(folder, transforms=transforms, dtype=dtype, layout=layout, shuffle=False)))
    assert x.dtype == getattr(torch, dtype)
    assert x.shape == ((8, 3, 16, 20) if layout == "NCHW" else (8, 16, 20, 3))
    exact, _, _ = next(iter(load(folder, transforms=transforms, shuffle=False)))
    other = x.float() / (255 if dtype == "uint8" else 1)
    if layout == "NHWC":
        other = other.permute(0, 3, 1, 2)
    assert (other - exact).abs().max() < 0.004


def test_shards_of_webdataset_and_tfrecord(tmp_path):
    expected = None
    for source in (images.tar_shards(tmp_path / "tar", 30, 3), images.tfrecord(tmp_path / "all.tfrecord", 30)):
        batches = walk(load(source, 7, transforms=[T.CenterCrop(20)]))
        numbers = torch.cat([i for _, _, i in batches])
        assert sorted(numbers.tolist()) == list(range(30))
        assert torch.equal(torch.cat([y for _, y, _ in batches]), numbers % 10)
        expected = expected or batches
        same(batches, expected)


def test_a_broken_sample_is_named_or_skipped(tmp_path):
    source = images.folder(tmp_path, 20)
    (tmp_path / "bee" / "00007.jpg").write_bytes(b"nothing")
    with pytest.raises(OSError, match=r"bee/00007.jpg.*on_error=\"skip\""):
        walk(load(source))
    loader = load(source, on_error="skip", shuffle=False)
    with pytest.warns(RuntimeWarning, match="00007.jpg.*next one"):
        indices = torch.cat([i for _, _, i in loader])
    assert indices.tolist() == [*range(7), 8, *range(8, 20)]
    assert loader.stats()["replaced"] == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        walk(loader)


def test_what_cannot_be_is_said(folder, tmp_path):
    with pytest.raises(OSError, match="no such file"):
        Loader(tmp_path / "nowhere", 4)
    with pytest.raises(ValueError, match="different sizes"):
        Loader(folder, 4)
    with pytest.raises(ValueError, match="float64"):
        load(folder, dtype="float64")
    with pytest.raises(TypeError, match="map="):
        load(folder, transforms=[lambda x: x])
    with pytest.raises(ValueError, match="rank 3 is not one of 2"):
        load(folder, rank=3, world_size=2)
    with pytest.raises(ValueError, match="belong together"):
        load(folder, rank=0)
    with pytest.raises(ValueError, match="on_error"):
        load(folder, on_error="ignore")


def test_mixed_labels_are_shares(folder):
    x, y, _ = next(iter(load(folder, mixup=0.4, cutmix=1.0)))
    assert y.shape == (8, 3) and y.dtype == torch.float32
    assert torch.allclose(y.sum(1), torch.ones(8)) and ((y > 0) & (y < 1)).any()
    torch.nn.functional.cross_entropy(torch.zeros(8, 3), y)


def test_memory_comes_back_and_is_bounded(folder):
    loader = load(folder, 10, prefetch_factor=2)
    for _ in range(6):
        for x, _, _ in loader:
            x.add_(1)
    bytes_of_a_batch = 10 * 3 * 16 * 16 * 4
    # Two ahead, one in our hands, one that is asked for; and what workers read into.
    assert loader.stats()["peak_memory_bytes"] < 5.5 * bytes_of_a_batch
    kept = list(loader)
    assert loader.stats()["memory_bytes"] > 5 * bytes_of_a_batch
    values = [x.clone() for x, _, _ in kept]
    walk(loader)
    assert all(torch.equal(x, value) for (x, _, _), value in zip(kept, values, strict=True))
    x = kept[0][0]
    del loader, kept
    gc.collect()
    assert torch.equal(x, values[0]), "a batch outlives its loader"


def test_threads_end_with_the_epoch_the_iterator_and_the_loader(folder):
    assert not loading()
    loader = load(folder)
    assert not loading(), "nothing is started before it is needed"
    batches = iter(loader)
    next(batches)
    assert both_load()
    with pytest.raises(RuntimeError, match="one iterator at a time"):
        again = iter(loader)
        next(batches)
    del batches
    assert both_load(), "an old iterator ends nothing"
    del again
    assert not loading()
    walk(loader)
    assert not loading()
    for _ in loader:
        break
    assert not loading()
    batches = iter(loader)
    loader.close()
    assert not loading()
    del loader, batches


def test_functions_in_python(folder):
    def brighter(image, label):
        return image + 1, label * 10

    plain = walk(load(folder))
    for workers in (0, 2):
        for (x, y), (expected, label, _) in zip(load(folder, map=brighter, map_workers=workers), plain, strict=True):
            assert torch.equal(x, expected + 1) and torch.equal(y, label * 10)
    sizes = [x for x, _ in load(folder, decode=False, shuffle=False, map=lambda data, label: (len(data), label))]
    files = sorted(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)
    assert sorted(torch.cat(sizes).tolist()) == files
    data, labels, _ = next(iter(load(folder, decode=False, shuffle=False)))
    assert all(one.startswith(b"\xff\xd8") for one in data) and len(labels) == 8


def test_batches_go_to_their_device_one_ahead(folder):
    expected = walk(load(folder))
    loader = load(folder, device="cpu")
    same(walk(loader), expected)
    batches = iter(loader)
    next(batches)
    assert loader.state_dict()["step"] == 1, "what is ahead does not count"


def test_a_forked_child_is_told(folder):
    loader = load(folder)
    batches = iter(loader)
    next(batches)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except RuntimeError as error:
            os.write(writing, str(error).encode())
        del batches, loader
        os._exit(0)
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0
    assert b"make a loader in the child" in os.read(reading, 1000)
    assert len(list(batches)) == 6, "the parent goes on"


SCRIPT = """
import sys
from farandole.data import Loader, transforms as T
loader = Loader(sys.argv[1], 8, [T.Resize((8, 8))], num_workers=2, framework="numpy")
batches = iter(loader)
images, labels = next(batches)
assert images.shape == (8, 3, 8, 8) and str(images.dtype) == "float32" and labels.dtype == "int64", images.dtype
images += 1
assert "torch" not in sys.modules and "jax" not in sys.modules
print("fine")
"""


def test_numpy_alone_and_an_interpreter_that_ends_in_the_middle(folder):
    done = subprocess.run([sys.executable, "-c", SCRIPT, folder], env=environment(), capture_output=True, text=True,
                          timeout=60)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
    assert done.stderr == ""


INTERRUPTED = """
import os, signal, sys, threading
from farandole.data import Loader, transforms as T
# A batch of images that are this large takes long.
loader = Loader(sys.argv[1], 50, [T.Resize((4000, 4000))], num_workers=1, framework="numpy")
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    for _ in loader:
        pass
except KeyboardInterrupt:
    print("interrupted")
"""


def test_control_c_is_heard_while_waiting(folder):
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, folder], env=environment(), capture_output=True,
                          text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def test_a_thread_that_waits_lets_others_run(folder):
    loader = load(folder, 50, transforms=[T.Resize((600, 600))], num_workers=1, dtype="uint8")
    ran = []
    batches = iter(loader)
    waiting = threading.Thread(target=lambda: ran.append(len(next(batches)[1])))
    waiting.start()
    count = 0
    while waiting.is_alive():
        count += 1
    assert ran == [50] and count > 1000


def test_ranks_of_a_job_share_the_samples(folder):
    job = run_job(2, """
        import sys
        from farandole.basics import basics
        from farandole.data import Loader, transforms as T
        basics.init()
        loader = Loader(sys.argv[1], 5, [T.Resize((8, 8))], num_workers=1, framework="numpy", return_indices=True)
        print(*sorted(int(i) for _, _, indices in loader for i in indices), loader.rank, loader.world_size)
    """, arguments=[folder])
    assert job.code == 0, job.errors
    shares = [[int(word) for word in job.lines(rank)[0].split()] for rank in range(2)]
    assert [share[-2:] for share in shares] == [[0, 2], [1, 2]]
    assert sorted(shares[0][:-2] + shares[1][:-2]) == list(range(50)) and len(shares[0]) == 27


def test_numbers_are_those_of_pillow(folder):
    loader = load(folder, transforms=[T.Resize((24, 32))], dtype="uint8", layout="NHWC", shuffle=False)
    x, _, i = next(iter(loader))
    for image, number in zip(x.numpy(), i.tolist(), strict=True):
        assert numpy.abs(image.astype(int) - images.picture(number)).mean() < 12
