"""`make bench`: pytest-benchmark's own JSON, with our machine and our figures in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bench.test_stages import VARIANTS
from diagnose.measure.stages.batches import LoaderConfig
from tests.support.cli import ROOT


def test_the_json_has_our_machine_and_figures_and_no_host_name(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    words = ["bench", "-q", "-k", "inference", "--workload", "bench/examples/my_job.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--size", "tiny", f"--benchmark-json={path}"],
        cwd=ROOT,
        # Its own pytest: pytest-benchmark measures nothing where it believes to share the machine.
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    written = json.loads(path.read_text())
    (benchmark,) = written["benchmarks"]
    extra = benchmark["extra_info"]
    assert extra["batch_size"] == 4
    assert extra["samples_per_second"] > 0
    assert extra["peak_bytes"] > 0
    assert (extra["watts"], extra["watts_reason"]) == (None, "the CPU has no NVML")
    assert written["machine_info"]["versions"]["torch"]["value"].startswith("2.")
    assert os.uname().nodename not in written["machine_info"].values()
    assert "node" not in written["machine_info"]


def test_every_loader_configuration_of_an_accelerator_is_a_case() -> None:
    names = {
        LoaderConfig(workers, storage, pin_memory=pinned).name
        for workers in (0, 2, 4, 8)
        for storage in ("mmap", "preload")
        for pinned in (False, True)
    }
    assert names == set(VARIANTS["loader"])
