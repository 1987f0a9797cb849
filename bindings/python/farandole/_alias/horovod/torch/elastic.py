"""`horovod.torch.elastic`: the name is there, so that importing it does no harm; its contents are not, yet.

Whoever reaches for one of them gets a `NotImplementedError` that says so, and not an `AttributeError` that reads like a
typing mistake.
"""

from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        # Python itself asks modules for such names and takes an AttributeError for an answer.
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise NotImplementedError(
        f"{__name__}.{name} is not there yet: Farandole runs jobs of a fixed size, and its elastic API is still to "
        "come. Start the script without the elastic wrapper, from its last checkpoint if there is one."
    )
