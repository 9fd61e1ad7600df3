"""Do both scripts work across hosts, and do they see how slow the link between them is?"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest

from bench.two_hosts import find_obstacle
from diagnose.analyze.link.verdict import judge
from diagnose.analyze.scaling.findings import judge_scaling
from diagnose.analyze.scaling.options import judge_options
from diagnose.records.ranks import BandwidthRecord, ScalingRecord
from diagnose.render import store
from tests.support.cli import ROOT
from tests.support.two_hosts import two_hosts

OBSTACLE = find_obstacle()
pytestmark = pytest.mark.skipif(bool(OBSTACLE), reason=OBSTACLE)

MIB = 2**20
ATTEMPTS = 3
RATE, BYTES_PER_SECOND = "200mbit", 25e6
HEAVY = ROOT / "tests" / "support" / "jobs" / "heavy.py"


@pytest.mark.alone
def test_the_rate_of_the_link_is_found(tmp_path: Path) -> None:
    # The link bounds the rate from above, always. A neighbour of this machine can only lower it,
    # so of several runs the fastest window is the one that must come near.
    fastest: dict[int, float] = {}
    for _ in range(ATTEMPTS):
        record = measure_link(tmp_path)
        assert "slow_link" in {each.kind for each in judge(record)}
        judged = [each for each in record.sizes if each.status == "done" and each.nbytes >= MIB]
        assert len(judged) >= 3
        for size in judged:
            windows = [max(times) for times in zip(*size.window_seconds, strict=True)]
            sent = size.nbytes * size.iterations_per_window / BYTES_PER_SECOND
            assert sent / statistics.median(windows) <= 1.05, size.nbytes
            fastest[size.nbytes] = max(fastest.get(size.nbytes, 0.0), sent / min(windows))
        # What an all-reduce takes whatever its size weighs more on the smallest and fastest.
        if max(fastest.values()) >= 0.90 and min(fastest.values()) >= 0.80:
            return
    raise AssertionError(f"too slow for the link in {ATTEMPTS} runs: {fastest}")


def measure_link(reports: Path) -> BandwidthRecord:
    with two_hosts(RATE) as link:
        ended = link.run(
            "ddp_bandwidth.py", "--device", "cpu", "--quick", "--max-bytes", "8M",
            "--model-bytes", "4M", "--label", "far", "--reports", reports,
        )  # fmt: skip
    assert [each.code for each in ended] == [0, 0], ended[0].err
    record = store.load(reports / "far" / "bandwidth.json", BandwidthRecord)
    assert record.complete
    assert record.nodes == 2
    assert [each.node for each in record.ranks] == [0, 1]
    return record


@pytest.mark.alone
def test_on_a_slow_link_correct_accumulation_gains_and_the_published_form_does_not(
    tmp_path: Path,
) -> None:
    # A neighbour of this machine can leave a run undecided, but none may decide it wrongly.
    for _ in range(ATTEMPTS):
        record = measure_accumulation(tmp_path)
        options = {each.comparison.form: each for each in judge_options(record)}
        correct, published = options["after"], options["as published"]
        assert correct.verdict in ("FASTER", "INCONCLUSIVE", "INVALID")
        assert published.verdict not in ("FASTER", "NOT_EQUAL")
        counts = [each.comparison.facts for each in (correct, published)]
        assert [each["all_reduces_before"] for each in counts] == [4, 4]
        assert [each["all_reduces_after"] for each in counts] == [1, 4]
        found = {each.kind: each.verdict for each in judge_scaling(record)}
        assert "excluded" not in (found["scaling_efficiency"], found["scaling_communication_share"])
        if correct.verdict == "FASTER":
            return
    raise AssertionError(f"undecided in {ATTEMPTS} runs: {correct.reason}")


def measure_accumulation(reports: Path) -> ScalingRecord:
    with two_hosts(RATE) as link:
        ended = link.run(
            "ddp_scaling.py", "--device", "cpu", "--quick", "--workload", HEAVY, "--only",
            "accumulate_4", "--label", "far", "--reports", reports,
        )  # fmt: skip
    assert [each.code for each in ended] == [0, 0], ended[0].err
    record = store.load(reports / "far" / "scaling.json", ScalingRecord)
    assert record.complete
    assert record.nodes == 2
    return record


def test_a_link_that_is_cut_ends_the_job_with_one_sentence(tmp_path: Path) -> None:
    with two_hosts(RATE) as link:
        words = ["--device", "cpu", "--quick", "--max-bytes", "64M", "--timeout", "10"]
        words += ["--label", "cut", "--reports", str(tmp_path)]
        near, far = link.start("ddp_bandwidth.py", words)
        path = tmp_path / "cut" / "bandwidth.json"
        deadline = time.monotonic() + 120
        while not (path.exists() and store.load(path, BandwidthRecord).sizes):
            assert time.monotonic() < deadline, "no size was measured"
            time.sleep(0.2)
        link.cut()
        _, said = near.communicate(timeout=120)
        # The far torchrun waits minutes for its own rendezvous, whatever its worker does.
        far.kill()
        far.communicate(timeout=120)
    assert near.returncode != 0
    record = store.load(path, BandwidthRecord)
    assert not record.complete
    assert [each.status for each in record.sizes if each.status != "skipped"].count("done") >= 1
    assert record.culprit is not None
    complaints = [line for line in said.splitlines() if line.startswith("diagnose: ")]
    assert len(complaints) == 1, said
    assert "sizes are in" in complaints[0]
