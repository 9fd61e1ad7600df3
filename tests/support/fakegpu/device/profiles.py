"""How fast is the simulated device? Profiles, and the variables that overrule them.

Time is simulated if FAKEGPU_PROFILE or one of the variables below is set; else work takes no time
of the device at all. The calibration that these figures come from is
`python -m tests.support.fakegpu.calibrate`; its docstring says what is scaled and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Speeds:
    """Of the twin, not of the device that it stands for. Without a profile: a fast device."""

    kernel_us: float = 4.0
    gflops: float = 1e6
    # Times as many FLOPs in 16 and in 64 bits.
    half: float = 1.0
    full: float = 1.0
    gbytes: float = 1e6
    link_gbytes: float = 10.0
    # Of the link's rate, from memory that is not pinned.
    pageable: float = 1.0
    # Between ranks.
    network_gbytes: float = 10.0
    # To get a segment of memory from the driver, or to give one back.
    segment_us: float = 0.0


# traces: measured in them, then scaled. sheet: the vendor's data sheet. desk: an estimate.
PROFILES: Mapping[str, Speeds] = {
    # A device that is behind with everything, so that hosts run ahead. Stands for no other.
    "slow": Speeds(kernel_us=20, gflops=4, gbytes=2, link_gbytes=1, network_gbytes=1),
    "h100": Speeds(
        kernel_us=7.1,  # traces: 3.6 us
        gflops=21.4,  # traces: 633 TFLOP/s in bfloat16; by the ratio below
        half=14.8,  # sheet: 989 over 67 TFLOP/s
        full=0.5,  # sheet: 34 over 67 TFLOP/s
        gbytes=1.13,  # traces: 2264 GB/s
        link_gbytes=0.0275,  # desk: 55 GB/s, PCIe 5
        pageable=0.2,  # traces: 11.1 GB/s
        network_gbytes=0.225,  # sheet: 450 GB/s, NVLink
        segment_us=400,  # desk: 200 us
    ),
    "v100": Speeds(
        kernel_us=2.0,  # traces: 1 us, counted in whole microseconds
        gflops=4.4,  # traces: 8.8 TFLOP/s
        half=8.0,  # sheet: 125 over 15.7 TFLOP/s
        full=0.5,  # sheet: 7.8 over 15.7 TFLOP/s
        gbytes=0.41,  # traces: 820 GB/s
        link_gbytes=0.006,  # desk: 12 GB/s, PCIe 3
        pageable=0.7,  # traces: 8.4 GB/s
        network_gbytes=0.075,  # sheet: 150 GB/s, NVLink
        segment_us=400,  # desk: 200 us
    ),
}

VARIABLES: Mapping[str, str] = {
    "FAKEGPU_KERNEL_US": "kernel_us",
    "FAKEGPU_GFLOPS": "gflops",
    "FAKEGPU_GBYTES": "gbytes",
    "FAKEGPU_LINK_GBYTES": "link_gbytes",
    "FAKEGPU_NETWORK_GBYTES": "network_gbytes",
}

# Times as long as the profile says: on a machine whose processes get that share of a core, host
# and device then keep their ratio.
SLOWDOWN = "FAKEGPU_SLOWDOWN"


def speeds(environment: Mapping[str, str]) -> Speeds | None:
    """What the variables ask for; None if nothing is to be simulated."""
    name = environment.get("FAKEGPU_PROFILE")
    if name is not None and name not in PROFILES:
        raise ValueError(f"FAKEGPU_PROFILE={name} is none of {', '.join(PROFILES)}")
    given = {
        field: float(environment[variable])
        for variable, field in VARIABLES.items()
        if variable in environment
    }
    if name is None and not given:
        return None
    chosen = replace(PROFILES[name] if name else Speeds(), **given)
    return _slower(chosen, float(environment.get(SLOWDOWN, 1)))


def _slower(speeds: Speeds, times: float) -> Speeds:
    return replace(
        speeds,
        kernel_us=speeds.kernel_us * times,
        segment_us=speeds.segment_us * times,
        gflops=speeds.gflops / times,
        gbytes=speeds.gbytes / times,
        link_gbytes=speeds.link_gbytes / times,
        network_gbytes=speeds.network_gbytes / times,
    )
