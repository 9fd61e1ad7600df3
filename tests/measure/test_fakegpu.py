"""Does the fake GPU behave like a device, wherever `import torch` is all that a program says?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.fakegpu.build import LIBRARY, BuildError, build

ROOT = Path(__file__).parents[2]

# Sums in another order differ in the last bits; a wrong kernel differs in the first.
FLOAT32_NOISE = 1e-5
# bfloat16 has 8 bits of precision, and the two devices round at different places.
BFLOAT16_NOISE = 2e-2


def run_python(environment: dict[str, str], *arguments: str) -> str:
    child = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return child.stdout


Answer = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def answer(fakegpu_env: dict[str, str]) -> Answer:
    """What a scenario saw. One process runs them all: importing torch is most of the time."""
    output = run_python(fakegpu_env, "-m", "tests.support.fakegpu.scenarios")
    answers: dict[str, dict[str, Any]] = json.loads(output)

    def find(name: str) -> dict[str, Any]:
        assert "traceback" not in answers[name], answers[name]["traceback"]
        return answers[name]

    return find


def test_importing_torch_is_enough_to_have_the_device(answer: Answer) -> None:
    assert answer("find_device") == {
        "accelerator": "fakegpu",
        "available": True,
        "count": 1,
        "is_fake": True,
        "new_tensor": "fakegpu:0",
    }


def test_there_is_no_device_without_the_environment() -> None:
    code = "import torch; print(hasattr(torch, 'fakegpu'))"
    assert run_python({"PYTHONPATH": ""}, "-c", code).strip() == "False"


def test_environment_sets_limit_and_uuid(fakegpu_env: dict[str, str]) -> None:
    code = "import torch; p = torch.fakegpu.get_device_properties(0); print(p)"
    settings = {"FAKEGPU_LIMIT_BYTES": "123456", "FAKEGPU_UUID": "GPU-7"}
    assert run_python(fakegpu_env | settings, "-c", code).strip() == (
        "DeviceProperties(name='Fake GPU', total_memory=123456, uuid='GPU-7')"
    )


def test_mistakes_with_devices_are_refused(answer: Answer) -> None:
    refusals = answer("refuse_other_devices")
    assert "there is one fakegpu" in refusals["second device"]
    assert "two devices, fakegpu:0 and cpu" in refusals["mixed devices"]


def test_results_equal_those_of_the_cpu(answer: Answer) -> None:
    results = answer("compute_like_cpu")
    assert results["matmul"] <= FLOAT32_NOISE
    assert results["lstm"] <= FLOAT32_NOISE
    assert results["write_through_view"] == [[0, 1, 1], [0, 1, 1]]
    assert results["out_argument"] == [2, 2]


def test_bert_trains(answer: Answer) -> None:
    result = answer("train_bert")
    on_cpu, on_device = result["losses"]
    assert on_device == pytest.approx(on_cpu, abs=FLOAT32_NOISE)
    assert result["gradient_difference"] <= FLOAT32_NOISE
    assert result["step"] > 0


def test_bert_trains_under_autocast(answer: Answer) -> None:
    result = answer("train_bert_in_bfloat16")
    on_cpu, on_device = result["losses"]
    assert result["logit_dtype"] == "torch.bfloat16"
    assert on_device == pytest.approx(on_cpu, abs=BFLOAT16_NOISE)
    assert on_device != answer("train_bert")["losses"][1]
    assert result["gradient_difference"] <= BFLOAT16_NOISE
    assert result["step"] > 0


def test_moving_a_module_keeps_its_parameters_identity(answer: Answer) -> None:
    assert answer("keep_tied_weights") == {"tied": True, "optimised": True, "device": "fakegpu"}


@pytest.mark.parametrize("workers", ["0 workers", "1 workers"])
def test_batches_are_pinned_and_moved(answer: Answer, workers: str) -> None:
    result = answer("load_batches")
    assert result[workers] == {"pinned": [True, True], "values": list(range(8))}
    assert result["ordinary_is_pinned"] is False


def test_gradient_scaler_scales_steps_and_skips_overflow(answer: Answer) -> None:
    assert answer("scale_gradients") == {
        "scaled_gradient": [8.0] * 4,
        "moved": [1.0] * 4,
        "scale_after_overflow": 4.0,
    }


def test_flops_are_counted(answer: Answer) -> None:
    assert answer("count_flops") == {"flops": 2 * 3 * 5 * 7}


def test_events_and_streams(answer: Answer) -> None:
    assert answer("record_events") == {
        "ordered": True,
        "done": True,
        "stream_inside": True,
        "stream_outside": False,
    }


def test_memory_is_counted_to_the_byte(answer: Answer) -> None:
    assert answer("account_for_memory") == {
        "current": 1_000,
        "peak": 11_000,
        "reserved": 1_000,
        "in_use": 1_000,
        "same_for_torch": True,
        "total_is_limit": True,
        "after": 0,
    }


def test_running_out_of_memory_is_real_and_leaves_nothing_behind(answer: Answer) -> None:
    result = answer("run_out_of_memory")
    assert len(result["errors"]) == 2
    for error in result["errors"]:
        assert error.startswith("torch.OutOfMemoryError: fakegpu out of memory. Tried to allocate")
    assert result["held_after"] == [0, 0]
    assert result["works_again"] == 100_000


def test_random_numbers_repeat(answer: Answer) -> None:
    result = answer("repeat_random_numbers")
    assert result["first"] == result["second"]
    assert len(set(result["first"])) == 4


def test_checkpoints_come_back_to_the_device(answer: Answer) -> None:
    assert answer("save_and_load") == {"device": "fakegpu", "values": [0, 1, 2]}


# A stand-in for the compiler: it notes each call and writes its output slowly enough that
# unsynchronised builds would overlap.
SLOW_COMPILER = """#!/bin/sh
echo called >> "{calls}"
while [ "$1" != "-o" ]; do shift; done
printf half > "$2"; sleep 0.3; printf whole > "$2"
"""


def test_builds_at_the_same_time_compile_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    compiler = tmp_path / "compiler"
    compiler.write_text(SLOW_COMPILER.format(calls=calls))
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with ThreadPoolExecutor(2) as pool:
        sites = list(pool.map(build, [tmp_path / "cache"] * 2))
    assert sites[0] == sites[1]
    assert (sites[0] / LIBRARY).read_text() == "whole"
    assert calls.read_text() == "called\n"


def test_failed_build_shows_the_compiler_message_and_leaves_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho 'no such header' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(BuildError, match="no such header"):
        build(tmp_path / "cache")
    assert not list(tmp_path.rglob(LIBRARY))
