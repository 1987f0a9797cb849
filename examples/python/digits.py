"""Hand-writing of a sort: images of digits, 28 by 28 pixels, drawn anew from a seed.

Owns the data of all examples that read digits, so that they need neither a download nor a disk. A digit is a glyph of
five by seven fields, enlarged, shifted by up to three pixels, of varying brightness, under noise. The same seed gives
the same images. A small convolutional network reads them; a guess is right once in ten.

`draw` makes a data set of PyTorch, `draw_arrays` arrays of numpy for TensorFlow, Keras, JAX and MXNet: neither needs
what the other needs. The two draw different images from the same seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy
    import torch

# One row of seven for each line of the glyph; five bits each, the left field is the highest bit.
_GLYPHS = [
    (0x0E, 0x11, 0x13, 0x15, 0x19, 0x11, 0x0E),
    (0x04, 0x0C, 0x04, 0x04, 0x04, 0x04, 0x0E),
    (0x0E, 0x11, 0x01, 0x02, 0x04, 0x08, 0x1F),
    (0x1F, 0x02, 0x04, 0x02, 0x01, 0x11, 0x0E),
    (0x02, 0x06, 0x0A, 0x12, 0x1F, 0x02, 0x02),
    (0x1F, 0x10, 0x1E, 0x01, 0x01, 0x11, 0x0E),
    (0x06, 0x08, 0x10, 0x1E, 0x11, 0x11, 0x0E),
    (0x1F, 0x01, 0x02, 0x04, 0x08, 0x08, 0x08),
    (0x0E, 0x11, 0x11, 0x0E, 0x11, 0x11, 0x0E),
    (0x0E, 0x11, 0x11, 0x0F, 0x01, 0x02, 0x0C),
]
# A field becomes three by three pixels: 15 by 21 in all, which leaves six and three pixels to each side.
_SCALE = 3
_SIDE = 28
_LARGEST_SHIFT = 3
# Of all pixels, as drawn; networks learn sooner from numbers around zero.
_MEAN, _DEVIATION = 0.13, 0.35


def _templates() -> torch.Tensor:
    """The ten digits, upright and in the middle, as images of 28 by 28."""
    import torch

    images = torch.zeros(10, _SIDE, _SIDE)
    top, left = (_SIDE - 7 * _SCALE) // 2, (_SIDE - 5 * _SCALE) // 2
    for digit, rows in enumerate(_GLYPHS):
        fields = torch.tensor([[(row >> (4 - column)) & 1 for column in range(5)] for row in rows], dtype=torch.float32)
        glyph = fields.repeat_interleave(_SCALE, 0).repeat_interleave(_SCALE, 1)
        images[digit, top : top + glyph.shape[0], left : left + glyph.shape[1]] = glyph
    return images


def draw(count: int, seed: int) -> torch.utils.data.TensorDataset:
    """`count` images of shape (1, 28, 28) and their labels, drawn from `seed`."""
    import torch

    chance = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=chance)
    images = _templates()[labels]
    shifts = torch.randint(-_LARGEST_SHIFT, _LARGEST_SHIFT + 1, (count, 2), generator=chance).tolist()
    for number, (down, right) in enumerate(shifts):
        images[number] = images[number].roll((down, right), (0, 1))
    brightness = 0.5 + 0.5 * torch.rand(count, 1, 1, generator=chance)
    noise = 0.2 * torch.randn(count, _SIDE, _SIDE, generator=chance)
    pixels = (images * brightness + noise - _MEAN) / _DEVIATION
    return torch.utils.data.TensorDataset(pixels.unsqueeze(1), labels)


def draw_arrays(count: int, seed: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """`count` images of shape (28, 28, 1) in float32 and their labels in int64, drawn from `seed`."""
    import numpy

    chance = numpy.random.default_rng(seed)
    labels = chance.integers(10, size=count)
    fields = [[[(row >> (4 - column)) & 1 for column in range(5)] for row in rows] for rows in _GLYPHS]
    glyphs = numpy.kron(numpy.array(fields, numpy.float32), numpy.ones((1, _SCALE, _SCALE), numpy.float32))
    brightness = 0.5 + 0.5 * chance.random(count, numpy.float32)
    shifts = chance.integers(-_LARGEST_SHIFT, _LARGEST_SHIFT + 1, size=(count, 2))
    pixels = 0.2 * chance.standard_normal((count, _SIDE, _SIDE), numpy.float32)
    height, width = glyphs.shape[1:]
    for number, (down, right) in enumerate(shifts + ((_SIDE - height) // 2, (_SIDE - width) // 2)):
        pixels[number, down : down + height, right : right + width] += brightness[number] * glyphs[labels[number]]
    return ((pixels - _MEAN) / _DEVIATION)[..., None], labels
