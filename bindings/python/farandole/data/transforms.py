"""What is done to images between decoding and the batch, by the names, arguments and defaults of torchvision.

These objects only say what is wanted: a `Loader` hands them to its threads, which do the work in Rust. Images come out
as `Loader(dtype=...)` says: floats lie between 0 and 1, as behind `ToTensor`, unless `Normalize` changes that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Union

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "Grayscale",
    "Normalize",
    "RandomCrop",
    "RandomErasing",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomVerticalFlip",
    "Resize",
    "ToTensor",
    "Transform",
]

Size = Union[int, Sequence[int]]
Range = Sequence[float]


class Transform:
    """A transform: its name and its arguments."""

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments

    def __repr__(self) -> str:
        words = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{type(self).__name__}({words})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(repr(self))


def steps(transforms: Transform | Iterable[Transform] | None) -> list[tuple[str, dict[str, Any]]]:
    """Transforms as the module in Rust wants them: one after the other, each with its name."""
    if transforms is None:
        return []
    if isinstance(transforms, Compose):
        return steps(transforms.transforms)
    if isinstance(transforms, ToTensor):
        return []
    if isinstance(transforms, Transform):
        return [(type(transforms).__name__, transforms.arguments)]
    if callable(transforms) or not isinstance(transforms, Iterable):
        raise TypeError(
            f"{transforms!r} is no transform of farandole.data.transforms; functions in Python are for map="
        )
    return [step for transform in transforms for step in steps(transform)]


def _pair(size: Size) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    sides = [int(side) for side in size]
    if len(sides) not in (1, 2):
        raise ValueError(f"a size is one number, or height and width, not {size!r}")
    return sides[0], sides[-1]


def _range(numbers: Range) -> tuple[float, float]:
    low, high = numbers
    return float(low), float(high)


class Compose(Transform):
    """Several transforms, one after the other."""

    def __init__(self, transforms: Sequence[Transform]) -> None:
        super().__init__()
        self.transforms = list(transforms)

    def __repr__(self) -> str:
        return f"Compose({self.transforms!r})"


class ToTensor(Transform):
    """Nothing: batches are tensors. For lists that were written for torchvision."""

    def __init__(self) -> None:
        super().__init__()


class Resize(Transform):
    """Brings the shorter side to `size`, or both sides to (height, width): bilinear, antialiased."""

    def __init__(self, size: Size) -> None:
        if not isinstance(size, int) and len(size) == 2:
            super().__init__(size=_pair(size))
        else:
            super().__init__(size=(None, _pair(size)[0]))


class CenterCrop(Transform):
    """Cuts out the middle; what is too small is padded with black."""

    def __init__(self, size: Size) -> None:
        super().__init__(size=_pair(size))


class RandomResizedCrop(Transform):
    """Cuts out a part of random area and proportions, and brings it to `size`."""

    def __init__(self, size: Size, scale: Range = (0.08, 1.0), ratio: Range = (3 / 4, 4 / 3)) -> None:
        super().__init__(size=_pair(size), scale=_range(scale), ratio=_range(ratio))


class RandomCrop(Transform):
    """Pads with black on each side and cuts out a part at a random place."""

    def __init__(self, size: Size, padding: int | None = None) -> None:
        super().__init__(size=_pair(size), padding=int(padding or 0))


class RandomHorizontalFlip(Transform):
    """Mirrors left to right, with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p=float(p))


class RandomVerticalFlip(Transform):
    """Mirrors top to bottom, with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p=float(p))


class RandomRotation(Transform):
    """Turns by up to `degrees` to either side; corners become black. `interpolation` is "nearest" or "bilinear", or
    torchvision's `InterpolationMode` of that name."""

    def __init__(self, degrees: float | Range, interpolation: Any = "nearest") -> None:
        interpolation = str(getattr(interpolation, "value", interpolation))
        if interpolation not in ("nearest", "bilinear"):
            raise ValueError(f'interpolation is "nearest" or "bilinear", not {interpolation!r}')
        if isinstance(degrees, (int, float)):
            most = float(degrees)
        else:
            low, most = _range(degrees)
            if low != -most:
                raise ValueError("images are turned by up to as much to one side as to the other: (-a, a)")
        super().__init__(degrees=most, interpolation=interpolation)


class ColorJitter(Transform):
    """Changes brightness, contrast, saturation and hue by up to so much."""

    def __init__(self, brightness: float = 0, contrast: float = 0, saturation: float = 0, hue: float = 0) -> None:
        super().__init__(
            brightness=float(brightness), contrast=float(contrast), saturation=float(saturation), hue=float(hue)
        )


class Grayscale(Transform):
    """Makes all bands the brightness. `Loader(channels=...)` says how many there are."""

    def __init__(self) -> None:
        super().__init__()


class RandomErasing(Transform):
    """Erases a part, with probability `p`: `value` is a number or "random"."""

    def __init__(
        self, p: float = 0.5, scale: Range = (0.02, 0.33), ratio: Range = (0.3, 3.3), value: float | str = 0
    ) -> None:
        if isinstance(value, str) and value != "random":
            raise ValueError(f'the value of an erased part is a number or "random", not {value!r}')
        fill = None if isinstance(value, str) else float(value)
        super().__init__(p=float(p), scale=_range(scale), ratio=_range(ratio), value=fill)


class Normalize(Transform):
    """Subtracts the mean and divides by the deviation: one number for all bands, or one for each."""

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        numbers = [[float(n)] if isinstance(n, (int, float)) else [float(one) for one in n] for n in (mean, std)]
        super().__init__(mean=numbers[0], std=numbers[1])
