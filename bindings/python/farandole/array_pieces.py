"""Where arrays of numpy lie, for comparing parameters with those of other ranks (`farandole::parameter_check`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

Piece = tuple[str, int, int, int, object]
"""Name, address, bytes, bytes of the parameter that this is the sample of, owner."""


def pieces(named: Iterable[tuple[str, Any]]) -> list[Piece]:
    """The memory of arrays, or of what numpy sees as one. What has no value is compared by its name alone."""
    found: list[Piece] = []
    for name, value in named:
        if value is None:
            found.append((name, 0, 0, 0, None))
            continue
        array = np.ascontiguousarray(value)
        found.append((name, array.ctypes.data, array.nbytes, array.nbytes, array))
    return found
