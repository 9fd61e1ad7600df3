"""How does a test ask the NVML stand-in without a process of its own?"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pynvml
import pytest

from tests.support.nvml_stub import find_library

Stub = Callable[..., None]


@pytest.fixture
def stub(nvml_stub: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Stub:
    """The stub in place of the driver; call it to set STUB_NVML_ variables, `FAIL="call=3"`."""
    library = ctypes.CDLL(str(find_library(nvml_stub)))
    library.diagnose_nvml_stub_reset()
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

    def set_up(**variables: object) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(f"STUB_NVML_{name}", str(value))

    return set_up
