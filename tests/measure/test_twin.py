"""Does the fake GPU take time as a GPU does, if it is asked to? Work is queued, hosts run ahead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 120

# Long enough that a busy machine launches many kernels in the time of one.
KERNEL = 2e-3
SETTINGS = {"FAKEGPU_KERNEL_US": str(KERNEL * 1e6), "FAKEGPU_DEVICES": "2"}

Answer = Callable[[str], dict[str, Any]]


def start(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, env=os.environ | environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(child: subprocess.Popen[str]) -> str:
    try:
        out, err = child.communicate(timeout=DEADLINE_SECONDS)
    finally:
        child.kill()
    assert child.returncode == 0, err
    return out


@pytest.fixture(scope="module")
def answer(fakegpu_env: dict[str, str]) -> Answer:
    """What a scenario saw. One process runs them all: importing torch is most of the time."""
    child = start(fakegpu_env | SETTINGS, "-m", "tests.support.fakegpu.timed")
    answers: dict[str, dict[str, Any]] = json.loads(finish(child))

    def find(name: str) -> dict[str, Any]:
        assert "traceback" not in answers[name], answers[name]["traceback"]
        return answers[name]

    return find


def test_the_host_runs_ahead_until_it_reads(answer: Answer) -> None:
    seen = answer("host_runs_ahead")
    assert seen["launching"] < 10 * KERNEL, "twenty kernels were launched, not waited for"
    assert seen["reading"] >= 20 * KERNEL
    assert seen["value"] == 40, "results are those of the host, at once"


def test_the_log_is_the_truth(answer: Answer) -> None:
    assert answer("log_tells_the_truth") == {
        "name": "aten::mm",
        "kind": "kernel",
        "flops": 2 * 8 * 4 * 8,
        "bytes": 4 * (2 * 8 * 4 + 8 * 8),
        "in_order": True,
        "kernels": pytest.approx(1, abs=1e-2),
        "busy": pytest.approx(1, abs=1e-2),
        "waits": 1,
        "counted": 1,
    }


def test_only_a_pinned_non_blocking_copy_does_not_wait(answer: Answer) -> None:
    assert answer("copies_wait_unless_pinned") == {
        "pageable False": 1,
        "pageable True": 1,
        "pinned False": 1,
        "pinned True": 0,
    }


def test_what_the_host_must_know_makes_it_wait(answer: Answer) -> None:
    waits = {name for name, waited in answer("reads_wait").items() if waited}
    assert waits == {"item", "if", "nonzero", "mask"}


def test_streams_overlap_where_a_gpu_would_and_follow_events(answer: Answer) -> None:
    assert answer("streams_and_events") == {
        "copy_overlaps": True,
        "kernels_share_the_device": True,
        "follows_the_event": True,
        "was_done": False,
        "elapsed": 5,
    }


def test_the_queue_is_1024_deep(answer: Answer) -> None:
    assert answer("queue_is_finite")["kernels_waited_for"] >= 99


def test_flops_of_convolution_and_attention(answer: Answer) -> None:
    convolution, attention = 2 * (2 * 5 * 8 * 8) * (3 * 3 * 3), 4 * 2 * 4 * 16 * 16 * 8
    assert answer("count_flops_of_layers") == {
        "convolution forward": convolution,
        "convolution backward": convolution,  # of the weight alone: the image needs no gradient
        "attention forward": attention,
        "attention backward": 2.5 * attention,
    }


def test_layers_with_kernels_of_their_own_compute_like_the_cpu(answer: Answer) -> None:
    for layer, difference in answer("layers_compute_like_cpu").items():
        assert difference <= 1e-4, layer


def test_foreach_is_one_kernel_for_all_tensors(answer: Answer) -> None:
    assert answer("foreach_is_one_kernel") == {"foreach": 1, "loop": 10, "value": -1}


def test_the_second_device_has_its_own_time_and_memory(answer: Answer) -> None:
    assert answer("second_device") == {
        "gradient": "fakegpu:1",
        "waited_less": True,
        "first_is_idle": True,
        "there": "fakegpu:1",
        "here": "fakegpu:0",
        "allocated": [False, True],
    }


def test_the_allocator_caches_and_retries_after_waiting(answer: Answer) -> None:
    assert answer("allocator_retries") == {
        "cached": 30,
        "reused": 30,
        "retries": 1,
        "waited": True,
        "refused": "fakegpu out of memory",
        "after": 0,
    }


def test_it_refuses_what_cuda_refuses(answer: Answer) -> None:
    seen = answer("refuses_what_cuda_refuses")
    assert "two devices, fakegpu:0 and cpu" in seen["fused"]
    assert "RNN backward can only be called in training mode" in seen["recurrent"]
    assert "not permitted when stream is capturing" in seen["graph"]
    assert seen["usable"] is True, "and works afterwards"


def test_a_graph_captures_without_computing_and_repeats(answer: Answer) -> None:
    assert answer("graph_repeats_its_kernels") == {
        "captured": [0, 0],
        "numbers": [2, 2],
        "doubled": [4, 4],
        "names": ["aten::add", "aten::mul", "aten::add", "aten::mul"],
    }


def test_a_rank_waits_on_its_device(fakegpu_env: dict[str, str], tmp_path: Path) -> None:
    program = ("-m", "tests.support.fakegpu.ranks")
    both = [
        start(fakegpu_env | SETTINGS, *program, str(rank), str(tmp_path / "store"))
        for rank in (0, 1)
    ]
    early, late = (json.loads(finish(child)) for child in both)
    for rank in (early, late):
        assert rank["value"] == 1 + 2 + 1
        assert rank["own_stream"]
        assert rank["next_follows"]
        assert rank["gradient"] == [1.0] * 4, "the mean over the ranks of 2 × rank"
    assert early["end"] == pytest.approx(late["end"], abs=1e-6)
    assert early["weight"] == late["weight"], "the first rank's"
    assert early["exchange"] - late["exchange"] > KERNEL * early["more_kernels"] / 2
    assert early["launching"] < early["exchange"] / 2, "its host went on meanwhile"


def test_profiles_and_variables(answer: Answer) -> None:
    assert answer("read_variables") == {
        "none": None,
        "profile": True,
        "one": True,
        "both": [7, True],
        "slower": [4, 0.25, 0.25, 1],
        "names": ["slow", "h100", "v100"],
        "unknown": "FAKEGPU_PROFILE=a100 is none of slow, h100, v100",
    }


def test_the_suite_waits_for_the_device_that_it_measures(answer: Answer) -> None:
    seen = answer("suite_measures_the_second")
    # Five and one; a host that is late makes it longer, never shorter.
    assert seen.pop("kernels") >= 6
    assert seen == {"waited": True, "peak_mib": 3, "reserved": True}


def test_steps_are_timed_between_events(answer: Answer) -> None:
    seen = answer("steps_by_events")
    assert min(seen["kernels"]) >= 5
    assert seen["queueing"] < 8 * KERNEL, "nothing was waited for"


def test_only_a_pinned_copy_is_counted_as_one_that_does_not_wait(answer: Answer) -> None:
    assert answer("copies_that_wait") == {
        "blocking": True,
        "pageable": True,
        "pinned, blocking": True,
        "pinned": False,
    }


def test_a_trial_of_copies_moves_kept_batches_from_pinned_memory(answer: Answer) -> None:
    for kind, seen in answer("copies_in_a_trial").items():
        assert seen["first"] == [2 * ["to device"], 1], "the batch's own copy, and the trial's"
        assert seen["then"] == [["to device"], 0], kind
        assert (seen["kept"], seen["value"]) == (True, 4)


def test_precision_is_known_after_the_newer_setting(answer: Answer) -> None:
    assert answer("new_setting_of_tf32") == {
        "before": "float32",
        "after": "tf32",
        "inside": "float32",
        "again": "tf32",
    }


def test_a_running_optimizer_can_be_fused_for_a_while(answer: Answer) -> None:
    assert answer("fused_in_the_middle") == {
        "what": ["fused=True in AdamW"],
        "windows": 12,
        "counted": 2,
        "place": "cpu",
    }


def test_the_device_is_that_of_the_parameters(answer: Answer) -> None:
    seen = answer("which_device")
    assert seen["of parameters"] == seen["asked"] == "fakegpu:1"
    assert seen["of nothing"] == "fakegpu:0"
    assert seen["none"] == "there is no device fakegpu:7: torch sees fakegpu:0 to fakegpu:1"


def test_make_prints_only_the_folder(fakegpu_env: dict[str, str]) -> None:
    made = subprocess.run(
        ["make", "-s", "fakegpu", f"PYTHON={sys.executable}"],
        cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=True,
    )  # fmt: skip
    (folder,) = made.stdout.splitlines()
    assert folder == fakegpu_env["PYTHONPATH"].split(os.pathsep)[0]
    assert (Path(folder) / "fakegpu" / "__init__.py").exists()
