"""How do the stages become pytest-benchmark tests? Our clock, our machine, our extra figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from diagnose.measure.gpu.power import PowerMeter
    from diagnose.measure.stages.plan import Context, Variant

BENCH = Path(__file__).parent / "bench"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("diagnose")
    group.addoption("--workload", default="bert", help="a built-in workload, or a .py file")
    group.addoption("--size", help="size of the workload (default: what suits the device)")
    group.addoption("--device", help="cpu, cuda, ... (default: the accelerator, else cpu)")
    group.addoption("--quick", action="store_true", help="skip whatever starts a Python process")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if BENCH in item.path.parents:
            item.add_marker(pytest.mark.benchmark(timer=synchronized_clock))


def synchronized_clock() -> float:
    """Seconds, after the device has finished all it was given."""
    import torch

    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.monotonic()


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: Any) -> None:
    """Our description replaces the plugin's, which contains the host name."""
    from diagnose.measure.machine.describe import probe
    from diagnose.measure.machine.device import open_device
    from diagnose.records.codec import to_dict

    machine_info.clear()
    machine_info.update(to_dict(probe(open_device(config.getoption("--device")).kind)))


@pytest.fixture(scope="session")
def context(request: pytest.FixtureRequest) -> Context:
    """The workload on its device, built once for all stages."""
    from diagnose.measure.clock import QUICK
    from diagnose.measure.jobs import load
    from diagnose.measure.machine.device import open_device
    from diagnose.measure.stages.plan import Context

    device = open_device(request.config.getoption("--device"))
    workload = load(request.config.getoption("--workload"))
    name, size = workload.size(request.config.getoption("--size"), device.kind)
    return Context(device, workload, name, size, QUICK, seed=0)


@pytest.fixture(scope="session")
def meter(context: Context) -> Iterator[PowerMeter]:
    from diagnose.measure.gpu.power import PowerMeter
    from diagnose.measure.machine.describe import identities
    from diagnose.records.codec import to_dict

    meter = PowerMeter(salt="")
    meter.watch([to_dict(identity) for identity in identities(context.device.kind)])
    yield meter
    meter.stop()


@pytest.fixture
def open_variant(context: Context) -> Callable[[str, str], AbstractContextManager[Variant]]:
    """The variant of that name, while its stage's resources are open."""
    import importlib

    from diagnose.measure.stages import STAGES
    from diagnose.measure.stages.plan import SkipStage

    @contextmanager
    def open_one(stage: str, name: str) -> Iterator[Variant]:
        module = next(each.module for each in STAGES if each.key == stage)
        try:
            with importlib.import_module(module).plan(context) as plan:
                variants = {variant.name: variant for variant in plan.variants}
                if name not in variants:
                    pytest.skip(f"stage {stage} has no '{name}' on this device")
                yield variants[name]
        except SkipStage as skip:
            pytest.skip(str(skip))

    return open_one


@pytest.fixture
def time_variant(benchmark: Any, context: Context, meter: PowerMeter) -> Callable[[Variant], None]:
    """Let pytest-benchmark time a variant, and add what its JSON has no field for."""

    def time_one(variant: Variant) -> None:
        variant.before_slot()
        variant.step()
        context.device.reset_peak()
        began = time.monotonic()
        benchmark(variant.step)
        ended = time.monotonic()
        variant.after_slot()
        benchmark.extra_info.update(variant.settings)
        benchmark.extra_info["peak_bytes"] = context.device.peak_bytes().value
        watts = meter.watts_between(began, ended)
        benchmark.extra_info["watts"] = watts.value
        if watts.value is None:
            benchmark.extra_info["watts_reason"] = watts.reason
        if variant.samples_per_step and benchmark.stats is not None:
            seconds = benchmark.stats.stats.median
            benchmark.extra_info["samples_per_second"] = variant.samples_per_step / seconds

    return time_one
