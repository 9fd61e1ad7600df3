"""Which sizes are all-reduced? A sweep, those of the field report, and those of DDP's buckets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from diagnose.records.header import Reading

FLOAT_BYTES = 4
SMALLEST_BYTES = 2**10
LARGEST_BYTES = 2**30
# Four points for every factor of 256 show where latency ends and bandwidth begins.
STEP = 4
FIELD_REPORT_MEGABYTES = (4, 40, 200)
# DDP's defaults (torch.nn.parallel.DistributedDataParallel): a small first bucket, so that the
# first transfer begins early, then bucket_cap_mb=25, which counts in MiB.
FIRST_BUCKET_BYTES = 2**20
BUCKET_BYTES = 25 * 2**20
# The largest size may take this share of what is free: fills and checks need a little more, and
# the machine has to keep breathing.
MEMORY_SHARE = 0.25


@dataclass(frozen=True)
class PlannedSize:
    """One size, and why it is measured; one that does not fit says why not."""

    nbytes: int
    purpose: str
    skip_reason: str = ""


def plan_sizes(bound_bytes: int, model_bytes: int) -> list[PlannedSize]:
    """Every size, smallest first. The sweep ends at the bound; a named size beyond it is told."""
    purposes: dict[int, list[str]] = {}
    nbytes = SMALLEST_BYTES
    while nbytes <= min(bound_bytes, LARGEST_BYTES):
        purposes.setdefault(nbytes, []).append("sweep")
        nbytes *= STEP
    for megabytes in FIELD_REPORT_MEGABYTES:
        name = f"{megabytes} MB of the field report"
        purposes.setdefault(megabytes * 10**6, []).append(name)
    purposes.setdefault(FIRST_BUCKET_BYTES, []).append("first bucket of 1 MiB")
    purposes.setdefault(BUCKET_BYTES, []).append("bucket of 25 MiB")
    purposes.setdefault(model_bytes // FLOAT_BYTES * FLOAT_BYTES, []).append("all gradients")
    return [
        PlannedSize(size, ", ".join(names), _explain_bound(size, bound_bytes))
        for size, names in sorted(purposes.items())
    ]


def _explain_bound(nbytes: int, bound_bytes: int) -> str:
    if nbytes <= bound_bytes:
        return ""
    return (
        f"over the bound of {bound_bytes} bytes (--max-bytes, the effort, or a quarter of the "
        "memory that was free)"
    )


def bound_sizes(free_bytes: Sequence[float], max_bytes: int) -> int:
    """The largest size that every rank can hold."""
    return min(max_bytes, LARGEST_BYTES, *(int(free * MEMORY_SHARE) for free in free_bytes))


def read_free_memory(ranks_on_host: int, root: Path = Path("/")) -> Reading:
    """Host memory that one of so many ranks may count on."""
    try:
        text = (root / "proc/meminfo").read_text()
    except OSError:
        return Reading(None, "/proc/meminfo cannot be read")
    found = re.search(r"^MemAvailable:\s*(\d+) kB", text, re.MULTILINE)
    if found is None:
        return Reading(None, "/proc/meminfo tells no MemAvailable")
    return Reading(int(found.group(1)) * 1024.0 / ranks_on_host)
