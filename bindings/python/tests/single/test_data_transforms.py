"""Transforms mean what torchvision's mean, and shares of lists are complete."""

import images
import numpy
import pytest
import torch
from farandole.data import Loader, shard
from farandole.data import transforms as T
from PIL import Image


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images that are stored without loss, so that numbers can be compared."""
    return images.folder(tmp_path_factory.mktemp("images"), 12, kind="PNG")


def make(folder, *transforms, dtype="uint8", **words):
    """All images as `[count, height, width, bands]`."""
    words = {"shuffle": False, "num_workers": 1, "framework": "numpy", "layout": "NHWC", **words}
    made, _ = next(iter(Loader(folder, 12, transforms, dtype=dtype, **words)))
    return made


PICTURES = numpy.stack([images.picture(number) for number in range(12)])


def test_crops_are_where_torchvision_has_them(folder):
    assert numpy.array_equal(make(folder, T.Resize((24, 32))), PICTURES)
    assert numpy.array_equal(make(folder, T.CenterCrop(10)), PICTURES[:, 7:17, 11:21])
    assert numpy.array_equal(make(folder, T.CenterCrop((20, 12))), PICTURES[:, 2:22, 10:22])
    padded = make(folder, T.CenterCrop((28, 32)))
    assert numpy.array_equal(padded[:, 2:26], PICTURES) and not padded[:, :2].any()
    for image, whole in zip(make(folder, T.RandomCrop(20)), PICTURES, strict=True):
        places = [(row, column) for row in range(5) for column in range(13)]
        assert any(numpy.array_equal(image, whole[row : row + 20, column : column + 20]) for row, column in places)


def test_flips_happen_as_often_as_they_are_said_to(folder):
    exact = T.CenterCrop((24, 32))
    assert numpy.array_equal(make(folder, exact, T.RandomHorizontalFlip(p=1)), PICTURES[:, :, ::-1])
    assert numpy.array_equal(make(folder, exact, T.RandomVerticalFlip(p=1)), PICTURES[:, ::-1])
    assert numpy.array_equal(make(folder, exact, T.RandomHorizontalFlip(p=0)), PICTURES)


def test_sizes_follow_the_shorter_side_and_are_antialiased(folder):
    made = make(folder, T.Resize(12), T.CenterCrop((12, 16)))
    for image, whole in zip(made, PICTURES, strict=True):
        expected = numpy.asarray(Image.fromarray(whole).resize((16, 12), Image.Resampling.BILINEAR)).astype(int)
        assert numpy.abs(image - expected).max() <= 1
    assert make(folder, T.RandomResizedCrop(9)).shape == (12, 9, 9, 3)


def test_numbers_are_normalised_and_lie_between_0_and_1_otherwise(folder):
    exact = T.CenterCrop((24, 32))
    floats = make(folder, exact, T.ToTensor(), dtype="float32")
    assert numpy.abs(floats - PICTURES / 255).max() < 1e-6
    mean, std = numpy.array([0.4, 0.5, 0.6]), numpy.array([0.2, 0.3, 0.4])
    made = make(folder, T.Compose([exact, T.Normalize(mean, std)]), dtype="float32")
    assert numpy.abs(made - (PICTURES / 255 - mean) / std).max() < 1e-5
    with pytest.raises(ValueError, match="makes fractions"):
        make(folder, exact, T.Normalize(0.5, 0.5))


def test_colours(folder):
    exact = T.CenterCrop((24, 32))
    grey = make(folder, exact, T.Grayscale())
    expected = numpy.stack([numpy.asarray(Image.fromarray(image).convert("L")) for image in PICTURES]).astype(int)
    assert numpy.abs(grey[..., 0] - expected).max() <= 1 and numpy.array_equal(grey[..., 0], grey[..., 2])
    assert make(folder, exact, channels=1).shape == (12, 24, 32, 1)
    assert numpy.array_equal(make(folder, exact, T.ColorJitter()), PICTURES)
    brighter = make(folder, exact, T.ColorJitter(brightness=0.5)).astype(float).mean((1, 2, 3))
    factors = brighter / PICTURES.mean((1, 2, 3))
    assert factors.min() > 0.45 and factors.max() < 1.55 and factors.std() > 0.1


def test_parts_are_erased_and_images_are_turned(folder):
    exact = T.CenterCrop((24, 32))
    erased = make(folder, exact, T.RandomErasing(p=1, value=1.0))
    changed = (erased != PICTURES).any(-1).mean((1, 2))
    assert (changed > 0.01).all() and (changed < 0.4).all()
    assert (erased[(erased != PICTURES).any(-1)] == 255).all()
    turned = make(folder, exact, T.RandomRotation(45))
    assert not numpy.array_equal(turned, PICTURES)
    assert numpy.array_equal(make(folder, exact, T.RandomRotation(0)), PICTURES)
    smooth = make(folder, exact, T.RandomRotation(45, interpolation="bilinear"))
    assert not numpy.array_equal(smooth, turned)
    # By the same angles: most pixels are near those of the other way.
    assert numpy.median(numpy.abs(smooth.astype(int) - turned.astype(int))) <= 8
    assert numpy.array_equal(make(folder, exact, T.RandomRotation(0, "bilinear")), PICTURES)
    with pytest.raises(ValueError, match=r"\(-a, a\)"):
        T.RandomRotation((10, 20))
    with pytest.raises(ValueError, match="interpolation"):
        T.RandomRotation(10, "bicubic")


def test_transforms_say_what_they_are():
    assert repr(T.RandomCrop(4, padding=1)) == "RandomCrop(size=(4, 4), padding=1)"
    assert T.Resize(3) == T.Resize([3]) != T.Resize((3, 3)) and T.RandomErasing() != T.RandomErasing(value="random")
    with pytest.raises(ValueError, match="height and width"):
        T.CenterCrop((1, 2, 3))


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_shares_of_a_list_are_complete_and_about_equal(parts):
    items = [f"{number}.tar" for number in range(13)]
    shares = [shard(items, rank=rank, world_size=parts) for rank in range(parts)]
    assert sorted(sum(shares, [])) == sorted(items)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    mixed = [shard(items, rank=rank, world_size=parts, shuffle=True, seed=1, epoch=2) for rank in range(parts)]
    assert sorted(sum(mixed, [])) == sorted(items) and sum(mixed, []) != sum(shares, [])
    assert mixed != [shard(items, rank=rank, world_size=parts, shuffle=True, seed=1, epoch=3) for rank in range(parts)]
    fewer = [shard(items, rank=rank, world_size=parts, equal="drop") for rank in range(parts)]
    more = [shard(items, rank=rank, world_size=parts, equal="repeat") for rank in range(parts)]
    assert {len(share) for share in fewer} == {13 // parts} and len(set(sum(fewer, []))) == 13 // parts * parts
    assert {len(share) for share in more} == {-(-13 // parts)} and set(sum(more, [])) == set(items)


class Shards(torch.utils.data.IterableDataset):
    """What a user writes who keeps a `DataLoader`."""

    def __iter__(self):
        return iter(shard(range(20), rank=1, world_size=2))


def test_workers_of_a_data_loader_have_shares_of_their_rank():
    seen = [int(item) for item in torch.utils.data.DataLoader(Shards(), batch_size=None, num_workers=2)]
    assert sorted(seen) == list(range(1, 20, 2))
    with pytest.raises(ValueError, match="equal is None"):
        shard([1], equal="yes")
