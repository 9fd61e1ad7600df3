"""What power does each rank draw while all of them train? Read by NVML on every rank's own GPU."""

from __future__ import annotations

import math
from collections.abc import Callable

from diagnose.measure.gpu import nvml
from diagnose.measure.gpu.sampler import Sampler
from diagnose.measure.machine.describe import identities
from diagnose.measure.ranks.job.member import Member
from diagnose.records.codec import from_dict, to_dict
from diagnose.records.header import Reading

# NVML averages power over up to a second; three of them hold two whole averages.
WATCHED_SECONDS = 3.0


def measure_watts(member: Member, step: Callable[[], object], step_seconds: float) -> list[Reading]:
    """By rank, over as many steps as fill the time; `step_seconds` is the same on every rank."""
    member.at("power of the full step")
    mine = _watch(member, step, max(1, math.ceil(WATCHED_SECONDS / step_seconds)))
    return [from_dict(Reading, each, "watts") for each in member.gather_objects(to_dict(mine))]


def _watch(member: Member, step: Callable[[], object], steps: int) -> Reading:
    device = member.device
    if device.is_cpu:
        return Reading(None, "the CPU has no NVML")
    own = identities(device.kind)[member.local_rank]
    with nvml.open_session() as session, Sampler(session, own) as sampler:
        device.synchronize()
        began = device.now()
        for _ in range(steps):
            step()
            member.still()
        device.synchronize()
        return sampler.watts_between(began, device.now())
