"""Which settings of the environment change the speed, and may be shown to anybody?

An allow-list of names, and then a check of the values: a record must not carry a host name, a
user, a path, an address or a secret, whatever somebody has put into an allowed variable.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping

from diagnose.records.header import HIDDEN

_NAMES = {
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "MKL_NUM_THREADS",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
}
_PREFIXES = ("NCCL_", "GLOO_", "TORCH_NCCL_", "TORCH_CUDNN_", "MALLOC_")
# Names that promise a secret or an identity, and those that hold an address or a host by design.
_PRIVATE_NAME = re.compile(r"TOKEN|SECRET|PASSW|KEY|CREDENTIAL|HOSTID|COMM_ID|HOSTNAME|USER")
_MAX_LENGTH = 200
_PLAIN = re.compile(r"[A-Za-z0-9_.,:;=+-]*")
_IPV4 = re.compile(r"\d{1,3}(\.\d{1,3}){3}")
_IPV6_OR_MAC = re.compile(r"([0-9A-Fa-f]{0,4}:){2,}[0-9A-Fa-f]{0,4}")
_DEVICE_UUID = re.compile(r"\b(GPU|MIG)-[0-9A-Za-z-]+")
_MIN_WORD = 3  # a shorter user or host name would hide half of all values


def choose_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that a record shows, each with a harmless value or HIDDEN."""
    private = _find_private_words(variables)
    chosen = {
        name: _check_value(name, value, private)
        for name, value in sorted(variables.items())
        if name in _NAMES or name.startswith(_PREFIXES)
    }
    if "LD_PRELOAD" in variables:
        libraries = [os.path.basename(it) for it in re.split(r"[:\s]+", variables["LD_PRELOAD"])]
        chosen["LD_PRELOAD"] = _check_value("LD_PRELOAD", ",".join(libraries), private)
    return chosen


def _find_private_words(variables: Mapping[str, str]) -> set[str]:
    words = {variables.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "HOSTNAME")}
    words |= {platform.node(), os.path.basename(variables.get("HOME", ""))}
    words |= {word.split(".")[0] for word in words}
    return {word.lower() for word in words if len(word) >= _MIN_WORD}


def _check_value(name: str, value: str, private: set[str]) -> str:
    value = _DEVICE_UUID.sub(rf"\1-{HIDDEN}", value)
    bare = value.replace(HIDDEN, "")
    shown = (
        not _PRIVATE_NAME.search(name)
        and len(value) <= _MAX_LENGTH
        and _PLAIN.fullmatch(bare)
        and not _IPV4.search(bare)
        and not _IPV6_OR_MAC.search(bare)
        and not any(word in bare.lower() for word in private)
    )
    return value if shown else HIDDEN
