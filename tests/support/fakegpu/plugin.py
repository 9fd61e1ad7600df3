"""How does a test get the fake GPU? The `fakegpu_env` fixture."""

from __future__ import annotations

import os

import pytest

from tests.support.fakegpu.build import CACHE, build, find_compiler


@pytest.fixture(scope="session")
def fakegpu_env() -> dict[str, str]:
    """What to add to the environment of a subprocess so that `import torch` brings the device.

    For example `subprocess.run(command, env=os.environ | fakegpu_env)`.
    """
    if find_compiler() is None:
        pytest.skip("the fake GPU needs a C++ compiler (g++, or one named in CXX)")
    earlier = os.environ.get("PYTHONPATH")
    return {
        "PYTHONPATH": os.pathsep.join([str(build(CACHE)), *([earlier] if earlier else [])]),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
    }
