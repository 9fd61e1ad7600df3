"""What is a run made of? Builders of its parts: clock readings, measurements, GPUs, machine."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from diagnose.records.header import DataFacts, Fact, Gpu, Link, Machine, Reading, Setting
from diagnose.records.run import GpuUse, Measurement, StageResult, Timing

NO_GPU = "this machine has no NVIDIA GPU"
TITLES = {
    "ceilings": "What the device attains",
    "inference": "Pure inference",
    "training": "Training",
    "precision": "Training in low precision",
    "loader": "DataLoader alone",
    "real_data": "Training on real data",
    "full_model": "Full model on real data",
}


def timing(
    seconds_per_step: float,
    slots: int = 10,
    noise: float = 0.004,
    seed: int = 0,
    steps_per_slot: int = 4,
    single_steps: int = 0,
    unmet: str = "",
    not_steady: str = "",
) -> Timing:
    """Slots that scatter by a share of `noise` around the given step time."""
    dice = random.Random(f"{seed} {seconds_per_step}")
    slot_seconds = tuple(
        seconds_per_step * steps_per_slot * (1 + noise * dice.uniform(-1, 1)) for _ in range(slots)
    )
    return Timing(
        steps_per_slot=steps_per_slot,
        slot_starts=tuple(100.0 + index for index in range(slots)),
        slot_seconds=slot_seconds,
        warmup_seconds=(seconds_per_step * 3, seconds_per_step),
        not_steady=not_steady,
        unmet=unmet,
        overhead_seconds=2e-6,
        step_seconds=tuple(
            seconds_per_step * (1 + noise * dice.uniform(-1, 1)) for _ in range(single_steps)
        ),
        step_clock="wall" if single_steps else "none",
        step_clock_reason="" if single_steps else "a step is too short to be timed alone",
    )


def gpu_use(
    watts: float = 400.0,
    limit: float = 450.0,
    utilization: float = 0.99,
    gpu: int = 0,
) -> GpuUse:
    return GpuUse(
        gpu=gpu,
        joules=Reading(watts * 10),
        joules_source="energy counter",
        watts=Reading(watts),
        idle_watts=Reading(22.0),
        power_limit_watts=Reading(limit),
        utilization=Reading(utilization),
        memory_bytes=Reading(9e9),
        sm_hertz=Reading(2.52e9),
        sm_hertz_lowest=Reading(2.505e9),
        memory_hertz=Reading(10.5e9),
        celsius_first=Reading(51.0),
        celsius_last=Reading(63.0),
        pcie_generation=Reading(4.0),
        pcie_width=Reading(16.0),
        throttle_seconds={
            "software power cap": Reading(3.2),
            "hardware thermal slowdown": Reading(0.0),
        },
    )


def measurement(
    name: str,
    seconds: float | Timing,
    role: str = "result",
    flops: float | None = None,
    nbytes: float | None = None,
    samples: int | None = 128,
    gpus: Sequence[GpuUse] = (),
    settings: Mapping[str, Setting] | None = None,
) -> Measurement:
    clock = seconds if isinstance(seconds, Timing) else timing(seconds, seed=len(name))
    used = tuple(
        replace(use, joules=Reading((use.watts.value or 0.0) * sum(clock.slot_seconds)))
        for use in gpus
    )
    return Measurement(
        name=name,
        role="reference" if role == "reference" else "result",
        settings=settings or {},
        timing=clock,
        samples_per_step=samples,
        flops_per_step=Reading(flops)
        if flops
        else Reading(None, "operations are not counted here"),
        bytes_per_step=Reading(nbytes) if nbytes else Reading(None, "bytes are not counted here"),
        peak_bytes=Reading(9.1e9) if gpus else Reading(None, "the host does not count peaks"),
        gpus=used,
        gpus_reason="" if gpus else NO_GPU,
    )


def stage(key: str, *measurements: Measurement, **changes: object) -> StageResult:
    values: dict[str, object] = {"status": "done", "seconds": 12.0, **changes}
    return StageResult(key=key, title=TITLES[key], measurements=measurements, **values)  # type: ignore[arg-type]


def gpu(name: str = "NVIDIA GeForce RTX 4090", used_before: float = 4e6) -> Gpu:
    return Gpu(
        name=name,
        uuid_hash="5f2c9a",
        nvml_index=Reading(0.0),
        memory_bytes=Reading(25.8e9),
        memory_used_before_bytes=Reading(used_before),
        utilization_before=Reading(0.0),
        power_limit_watts=Reading(450.0),
        power_limit_default_watts=Reading(450.0),
        power_limit_min_watts=Reading(150.0),
        power_limit_max_watts=Reading(600.0),
        sm_hertz_max=Reading(3.105e9),
        memory_hertz_max=Reading(10.501e9),
        pcie_generation=Reading(4.0),
        pcie_generation_max=Reading(4.0),
        pcie_width=Reading(16.0),
        pcie_width_max=Reading(16.0),
        compute_capability=Fact("8.9"),
        ecc=Fact(None, "this GPU has no ECC"),
        mig=Fact(None, "not supported"),
        persistence=Fact("on"),
        compute_mode=Fact("default"),
        energy_period_seconds=Reading(0.1),
    )


def machine(gpus: int = 1, cpu_busy: float = 0.01) -> Machine:
    return Machine(
        device="cuda" if gpus else "cpu",
        device_name="NVIDIA GeForce RTX 4090" if gpus else "Xeon",
        system="Linux 6.8 x86_64",
        cpu_model=Fact("AMD EPYC 7763 64-Core Processor"),
        cpu_cores=16,
        cpu_governor=Fact(None, "not readable in a container"),
        memory_bytes=Reading(135e9),
        shared_memory_bytes=Reading(67e9),
        cpu_busy_before=Reading(cpu_busy),
        wsl2=False,
        container=Fact("docker"),
        versions={"python": Fact("3.11.7"), "torch": Fact("2.13.0"), "nccl": Fact(None, "no CUDA")},
        threads=16,
        git_commit=Fact("0123abc"),
        environment={"OMP_NUM_THREADS": "16"},
        gpus=tuple(gpu() for _ in range(gpus)),
        gpus_reason="" if gpus else NO_GPU,
        links=(Link(0, 1, Fact("SYS"), Fact(None, "not supported")),) if gpus > 1 else (),
        nvml=Fact("available") if gpus else Fact(None, NO_GPU),
    )


def data_facts(padding_share: float = 0.12) -> DataFacts:
    return DataFacts(
        description="Chinese user-interface sentences with planted errors",
        sha256="ab" * 32,
        sentences=4000,
        rows=4096,
        erroneous_rows=2048,
        length_quantiles={"p10": 4.0, "p50": 12.0, "p90": 41.0, "max": 126.0},
        padding_share=padding_share,
    )
