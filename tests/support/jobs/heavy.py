"""A job whose gradients weigh much more than its arithmetic: the link decides its speed."""

from __future__ import annotations

from diagnose.workload import Size
from tests.support.jobs.small import small_job

WORKLOAD = small_job("heavy", Size(batch_size=2), width=512)  # one matrix of 1 MiB
