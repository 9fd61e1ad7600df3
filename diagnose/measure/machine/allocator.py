"""What becomes of freed memory on the CPU? Kept for the next tensor, or given back to the system.

An accelerator's caching allocator keeps it. The GNU C library gives every block above 32 MiB
back at once, so that the next tensor of that size is faulted in page by page and zeroed by the
kernel: on a vocabulary-sized tensor that can cost more than computing it.
"""

from __future__ import annotations

import ctypes
import sys

# From malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_MMAP_MAX = -4

# Where the library's own adaptive thresholds end on 64-bit systems, and its limit of mappings.
_LARGEST_KEPT_BYTES = 32 * 2**20
_MOST_MAPPINGS = 65536
# mallopt takes an int: nothing that fits a machine is above it.
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Whether this C library could be told to keep what is freed."""
    return _set((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _NEVER))


def return_large_blocks() -> bool:
    """As the GNU C library does by itself, once its thresholds have adapted to large tensors."""
    return _set(
        (_M_MMAP_MAX, _MOST_MAPPINGS),
        (_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES),
        (_M_TRIM_THRESHOLD, 2 * _LARGEST_KEPT_BYTES),
    )


def _set(*options: tuple[int, int]) -> bool:
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and all(mallopt(name, value) == 1 for name, value in options)
