"""Was the GPU itself as it should be, and do its readings belong to it?"""

from __future__ import annotations

from collections.abc import Callable

from diagnose.analyze.findings import Finding
from diagnose.analyze.flags import collect, measurements
from diagnose.analyze.units import pcie_link
from diagnose.records.header import Reading
from diagnose.records.run import GpuUse, RunRecord


def link_below_maximum(record: RunRecord) -> list[Finding]:
    """The best link that any stage saw: an idle one drops to a lower generation by itself."""
    evidence = []
    for index, gpu in enumerate(record.header.machine.gpus):
        generation = _highest(record, index, lambda use: use.pcie_generation)
        width = _highest(record, index, lambda use: use.pcie_width)
        if _below(generation, gpu.pcie_generation_max) or _below(width, gpu.pcie_width_max):
            evidence.append(
                f"GPU {index}: at best {pcie_link(generation, width)} under load, where "
                f"{pcie_link(gpu.pcie_generation_max.value, gpu.pcie_width_max.value)} is possible"
            )
    sentence = "A PCIe link is slower than GPU and board allow."
    advice = (
        "Reseat the card or use another slot, and look for a riser or a firmware setting that "
        "limits the link: every copy between host and GPU runs at its speed."
    )
    return collect("pcie_link", "warning", sentence, evidence, advice)


def doubtful_identity(record: RunRecord) -> list[Finding]:
    evidence = [
        f"GPU {index}: {gpu.nvml_index.reason}"
        for index, gpu in enumerate(record.header.machine.gpus)
        if gpu.nvml_index.value is not None and gpu.nvml_index.reason
    ]
    sentence = "Power and clocks may belong to another GPU."
    advice = "Compare times only, or measure on a machine where the GPU can be told for sure."
    return collect("gpu_identity", "warning", sentence, evidence, advice)


def doubtful_energy(record: RunRecord) -> list[Finding]:
    evidence = []
    for place, each in measurements(record):
        for use in each.gpus:
            if "disagree" in use.joules_source:
                evidence.append(f"{place}: GPU {use.gpu}, {use.joules_source}")
            if use.dropped_samples:
                evidence.append(f"{place}: GPU {use.gpu}, {use.dropped_samples} samples of 0 W")
    sentence = "Some readings of power cannot be right."
    advice = "Do not compare watts and joules of these stages with those of other machines."
    return collect("gpu_energy", "warning", sentence, evidence, advice)


def _highest(record: RunRecord, index: int, read: Callable[[GpuUse], Reading]) -> float | None:
    readings = (
        read(use).value for _, each in measurements(record) for use in each.gpus if use.gpu == index
    )
    return max((value for value in readings if value is not None), default=None)


def _below(seen: float | None, highest: Reading) -> bool:
    return seen is not None and highest.value is not None and seen < highest.value
