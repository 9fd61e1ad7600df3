from __future__ import annotations

import pytest

from tests.fakegpu.plugin import fakegpu_env as fakegpu_env
from tests.nvml_stub import build_stub, find_compiler


@pytest.fixture(scope="session")
def nvml_stub(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which a new process finds the NVML stand-in instead of the driver."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc or clang) to build the NVML stub with")
    return build_stub(compiler, tmp_path_factory.mktemp("nvml_stub"))
