"""Is freed memory really kept, and really given back when asked?"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from diagnose.measure.machine.allocator import keep_freed_memory
from tests.support.cli import ROOT

# Page faults of twenty tensors of 64 MiB, made and dropped one after the other, once as many
# before them have let the heap grow to what it needs.
COUNT_FAULTS = """
import resource, sys, torch
from diagnose.measure.machine import allocator
assert getattr(allocator, sys.argv[1])()
for _ in range(20):
    torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES_OF_A_TENSOR = 2**26 // 4096


def count_faults(arrangement: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", COUNT_FAULTS, arrangement],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        # Huge pages would hide the faults that this test counts.
        env={**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"},
    )
    return int(done.stdout)


@pytest.mark.skipif(not keep_freed_memory(), reason="this C library has no mallopt")
def test_kept_memory_is_not_faulted_in_again() -> None:
    kept, returned = count_faults("keep_freed_memory"), count_faults("return_large_blocks")
    assert kept < PAGES_OF_A_TENSOR, "at most once"
    assert returned > 10 * kept, "every tensor anew"
