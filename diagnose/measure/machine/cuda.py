"""Which devices does torch see, and which CUDA libraries does it use?

The device's own torch module is asked, so any accelerator whose module has
get_device_properties() is described like a CUDA one. Tests run these lines with other modules;
they run none of them on a real CUDA device, and the answers of `read_cudnn_version`,
`read_nccl_version` and `read_utilization` with a CUDA build are never executed by tests.
"""

from __future__ import annotations

from typing import Any

import torch

from diagnose.measure.gpu.nvml import Identity
from diagnose.records.header import Fact


def read_identities(module: Any) -> tuple[Identity, ...]:
    """Every visible device of one torch device module, in torch's order."""
    read = getattr(module, "get_device_properties", None)
    indices = range(int(module.device_count()))
    return tuple(_identify(index, read(index) if read else None) for index in indices)


def _identify(index: int, properties: Any) -> Identity:
    uuid = getattr(properties, "uuid", None)
    memory = getattr(properties, "total_memory", None)
    major, minor = getattr(properties, "major", None), getattr(properties, "minor", None)
    return Identity(
        index=index,
        name=str(getattr(properties, "name", "")),
        uuid=None if uuid is None else str(uuid),
        pci_bus_id=_format_pci(properties),
        memory_bytes=None if memory is None else int(memory),
        compute_capability=None if major is None or minor is None else f"{major}.{minor}",
    )


def _format_pci(properties: Any) -> str | None:
    """NVML's spelling of the address. Older torch versions do not tell it."""
    if not hasattr(properties, "pci_bus_id"):
        return None
    domain, bus = properties.pci_domain_id, properties.pci_bus_id
    return f"{domain:08X}:{bus:02X}:{properties.pci_device_id:02X}.0"


def read_utilization(index: int) -> float | None:
    """By NVML, through torch, which knows its own order of the devices."""
    try:
        return float(torch.cuda.utilization(index)) / 100
    except (RuntimeError, ImportError):  # no NVML, or not for this device
        return None


def read_cuda_version() -> Fact:
    version = torch.version.cuda
    return Fact(version) if version else Fact(None, "this torch is built without CUDA")


def read_cudnn_version() -> Fact:
    version: Any = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return Fact(str(version)) if version else Fact(None, "this torch has no cuDNN")


def read_nccl_version() -> Fact:
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return Fact(None, "this torch is built without NCCL")
    version: Any = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return Fact(".".join(str(part) for part in version))


def graph_class() -> type:
    """Of recorded work that is replayed; there is one in every build of torch."""
    return torch.cuda.CUDAGraph
