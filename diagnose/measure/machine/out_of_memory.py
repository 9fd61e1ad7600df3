"""Was it memory that was lacking? The ways in which allocators, drivers and libraries say so."""

from __future__ import annotations

import re

_WORDS = (
    "can't allocate memory",
    "not enough memory: you tried to allocate",  # the same allocator on Windows
    "Cannot allocate memory",
    "std::bad_alloc",
    "CUDA error: out of memory",
    "MPS backend out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "NVML_SUCCESS == r INTERNAL ASSERT FAILED",
)
# "you tried to allocate 400000 bytes" on the CPU, "Tried to allocate 20.00 MiB" on CUDA.
_ASKED_FOR = re.compile(r"tried to allocate ([\d.]+ \w+)", re.IGNORECASE)


def is_out_of_memory(error: Exception, out_of_memory: type[Exception]) -> bool:
    """It is not one exception: CPU, MIG slices and cuBLAS each say it in their own words."""
    if isinstance(error, (out_of_memory, MemoryError)):
        return True
    text = str(error)
    return isinstance(error, (RuntimeError, OSError)) and any(words in text for words in _WORDS)


def read_asked_for(error: Exception) -> str:
    """How much the allocation that failed asked for, in the allocator's words; else empty."""
    found = _ASKED_FOR.search(str(error))
    return found[1] if found else ""
