"""Was it memory that was lacking, or the card itself? In the words of allocators and drivers."""

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
# Of a card in exclusive-process mode that another process holds.
_HELD = "devices are busy or unavailable"
ONE_PROCESS = (
    "the card lets in one process at a time (exclusive-process mode) and another one holds it; "
    "end that one, or let in more by nvidia-smi -c 0"
)
# "you tried to allocate 400000 bytes" on the CPU, "Tried to allocate 20.00 MiB" on CUDA.
_ASKED_FOR = re.compile(r"tried to allocate ([\d.]+ \w+)", re.IGNORECASE)


def is_out_of_memory(error: Exception, out_of_memory: type[Exception]) -> bool:
    """It is not one exception: CPU, MIG slices and cuBLAS each say it in their own words."""
    if isinstance(error, (out_of_memory, MemoryError)):
        return True
    text = str(error)
    return isinstance(error, (RuntimeError, OSError)) and any(words in text for words in _WORDS)


def is_held_by_another(message: str) -> bool:
    return _HELD in message


def read_asked_for(error: Exception) -> str:
    """How much the allocation that failed asked for, in the allocator's words; else empty."""
    found = _ASKED_FOR.search(str(error))
    return found[1] if found else ""
