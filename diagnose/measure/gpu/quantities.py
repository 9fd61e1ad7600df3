"""What is read from a GPU, by which question to NVML, and what of it reaches the record?"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from diagnose.measure.gpu import nvml
from diagnose.measure.gpu.nvml import Call, Field

Pick = Callable[[Sequence[float]], float]

_SECONDS_PER_NANOSECOND = 1e-9
_GPU = 0
_MODULE = 1  # the whole module of a Grace-Hopper: processor and GPU together
_INSTANT, _AVERAGE = 186, 185  # field numbers
_SM, _MEMORY = 1, 2  # nvmlClockType_t


@dataclass(frozen=True)
class Quantity:
    """One number that a GPU tells again and again."""

    name: str
    field_id: Field | None = None  # asked for first, because all fields are one call
    calls: tuple[Call, ...] = ()  # then these, until one has an answer
    member: str = ""  # of the structure that a call returns
    unit: float = 1.0
    # Field of GpuUse -> what it takes of all the values within the measured windows.
    picks: Mapping[str, Pick] = field(default_factory=dict)
    bit: int = 0  # of clock_reasons, for a reason why clocks are lowered


def _gauge(
    name: str, call: str, *arguments: int, unit: float = 1.0, member: str = "", **picks: Pick
) -> Quantity:
    calls = ((call, arguments),)
    return Quantity(name, None, calls, member, unit, picks or {name: statistics.median})


# Clocks and temperatures: they move slowly.
GAUGES = (
    _gauge("power_limit_watts", "nvmlDeviceGetPowerManagementLimit", unit=nvml.WATTS_PER_MILLIWATT),
    _gauge(
        "utilization",
        "nvmlDeviceGetUtilizationRates",
        member="gpu",
        unit=nvml.SHARE_PER_PERCENT,
        utilization=statistics.fmean,
    ),
    _gauge(
        "sm_hertz",
        "nvmlDeviceGetClockInfo",
        _SM,
        unit=nvml.HERTZ_PER_MEGAHERTZ,
        sm_hertz=statistics.median,
        sm_hertz_lowest=min,
    ),
    _gauge("memory_hertz", "nvmlDeviceGetClockInfo", _MEMORY, unit=nvml.HERTZ_PER_MEGAHERTZ),
    _gauge(
        "celsius",
        "nvmlDeviceGetTemperature",
        0,
        celsius_first=itemgetter(0),
        celsius_last=itemgetter(-1),
    ),
    # Idle links drop to a lower generation, so the highest is the one under load.
    _gauge("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", pcie_generation=max),
    _gauge("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", pcie_width=max),
    Quantity("memory_bytes", calls=nvml.MEMORY_CALLS, member="used", picks={"memory_bytes": max}),
    Quantity(
        "clock_reasons",  # bit masks
        calls=(
            ("nvmlDeviceGetCurrentClocksEventReasons", ()),
            ("nvmlDeviceGetCurrentClocksThrottleReasons", ()),  # its name before driver 535
        ),
    ),
)

# Why clocks were lowered: NVML counts the time, and shows a bit in clock_reasons meanwhile.
CLOCK_LIMITS = tuple(
    Quantity(name, (number, _GPU), unit=_SECONDS_PER_NANOSECOND, bit=bit)
    for name, number, bit in (
        ("software power cap", 74, 0x04),
        ("sync boost", 76, 0x10),
        ("software thermal slowdown", 269, 0x20),
        ("hardware thermal slowdown", 270, 0x40),
        ("hardware power brake", 271, 0x80),
    )
)
JOULES = Quantity(  # a counter since the driver was loaded
    "joules",
    (83, _GPU),
    (("nvmlDeviceGetTotalEnergyConsumption", ()),),
    unit=nvml.JOULES_PER_MILLIJOULE,
)
COUNTERS = (*CLOCK_LIMITS, JOULES)


@dataclass(frozen=True)
class PowerKind:
    """What a power sensor shows."""

    name: str
    average_seconds: float = 0.0  # 0 for a sensor without a memory


INSTANT = PowerKind("instant")
# In the order of preference. The GPU alone comes before the module with its processor.
POWER_FIELDS: Mapping[Field, PowerKind] = {
    (_INSTANT, _GPU): INSTANT,
    (_AVERAGE, _GPU): PowerKind("1 s averages", 1.0),
    (_INSTANT, _MODULE): PowerKind("module: processor and GPU"),
    (_AVERAGE, _MODULE): PowerKind("module: processor and GPU, 1 s averages", 1.0),
}
# nvml.h of nvmlDeviceGetPowerUsage: averaged over 1 s since Ampere, except for GA100, whose
# compute capability is the lowest of its generation.
POWER_USAGE = PowerKind("the driver's power usage")
POWER_USAGE_AVERAGED = PowerKind("the driver's power usage, 1 s averages", 1.0)
LAST_WITHOUT_AVERAGE = (8, 0)
