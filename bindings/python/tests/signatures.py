"""Signatures as text, for tests that compare ours with Horovod's."""

from __future__ import annotations

import inspect
from types import ModuleType


def parameters_of(function: object, hvd: ModuleType) -> list[str]:
    """The parameters of `function`, each as it would stand in a signature. `hvd` has the objects that are defaults."""
    objects = {id(hvd.Compression.none): "Compression.none"}
    if hasattr(hvd, "global_process_set"):
        objects[id(hvd.global_process_set)] = "global_process_set"
    written = []
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.kind is not inspect.Parameter.POSITIONAL_ONLY, parameter
        stars = {inspect.Parameter.KEYWORD_ONLY: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        text = stars + parameter.name
        if parameter.default is not inspect.Parameter.empty:
            default = objects.get(id(parameter.default), repr(parameter.default))
            # Operations are plain numbers.
            if parameter.name == "op" and default == "0":
                default = "Average"
            text += f"={default}"
        written.append(text)
    return written


def assert_serves(found: list[str], signature: str) -> None:
    """Every call that Horovod's signature allows means the same here. More parameters may follow if they have defaults."""
    wanted = signature[1:-1].split(", ") if signature != "()" else []
    if wanted and wanted[-1].startswith("**"):
        assert wanted.pop() in found
    assert found[: len(wanted)] == wanted
    for extra in found[len(wanted) :]:
        assert "=" in extra or extra.startswith("**"), f"{extra} would break calls that were right for Horovod"
