"""What do all measuring processes owe? To go when their parent goes, and to know what they lack."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """A killed parent must not leave a child on the device."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def is_out_of_memory(error: Exception, out_of_memory: type[Exception]) -> bool:
    """It is not one exception: CPU, MIG slices and cuBLAS each say it in their own words."""
    if isinstance(error, (out_of_memory, MemoryError)):
        return True
    text = str(error)
    return isinstance(error, (RuntimeError, OSError)) and any(
        words in text
        for words in (
            "can't allocate memory",
            "Cannot allocate memory",
            "CUDA error: out of memory",
            "CUBLAS_STATUS_ALLOC_FAILED",
            "CUDNN_STATUS_ALLOC_FAILED",
            "NVML_SUCCESS == r INTERNAL ASSERT FAILED",
        )
    )
