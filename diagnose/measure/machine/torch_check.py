"""Can this Python's torch be used? Asked before anything else, and answered in one sentence."""

from __future__ import annotations

import importlib.metadata
import importlib.util

# The oldest release with which `script` and `run` were tried; see docs/install.md.
OLDEST = (2, 6)


class UnusableTorch(Exception):
    """torch is missing, broken or too old; the message says what to do."""


def torch_problem() -> str:
    """Why torch is missing or too old, or ""; from its metadata, so that it costs no import."""
    if importlib.util.find_spec("torch") is None:
        return (
            "torch is not installed in this Python; install it as pytorch.org says for your "
            "machine, or run diagnose with the Python that has it: python -m diagnose ..."
        )
    try:
        return _say_too_old(importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        return ""  # built from source: only the import tells


def require_torch() -> None:
    """UnusableTorch unless a torch that this tool works with can be imported."""
    if problem := torch_problem():
        raise UnusableTorch(problem)
    # Whatever a half-installed library raises (a missing shared object, a wrong ABI), the user
    # needs the first line of it and not our frames.
    try:
        import torch

        found = str(torch.__version__)
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UnusableTorch(
            f"torch is installed but cannot be imported ({first}); reinstall it, and try "
            'python -c "import torch" until that works'
        ) from error
    if problem := _say_too_old(found):
        raise UnusableTorch(problem)


def _say_too_old(version: str) -> str:
    if _release(version) >= OLDEST:
        return ""
    oldest = ".".join(map(str, OLDEST))
    return (
        f"torch {version} is too old: diagnose needs {oldest} or newer; upgrade torch, or "
        "measure in another environment"
    )


def _release(version: str) -> tuple[int, ...]:
    """(2, 6) of "2.6.0a0+git123"; (0,) where nothing can be read, which is older than anything."""
    numbers = []
    for part in version.split("+")[0].split(".")[:2]:
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers) or (0,)
