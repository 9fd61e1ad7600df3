"""Wrong usage gets one sentence and exit code 2; nothing is written.

What else a workload file or a data file may do wrong is asked of its reader, in its own tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.measure.machine.device import DeviceError, open_device
from tests.support.cli import FAULTY, diagnose, diagnose_here

VERBS = ("run", "report", "check")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_with_an_example(verb: str) -> None:
    outcome = diagnose_here(verb, "--help")
    assert outcome.code == 0
    assert f"python -m diagnose {verb}" in outcome.out
    assert "example:" in outcome.out


def test_without_a_verb_the_verbs_are_named() -> None:
    outcome = diagnose()
    assert outcome.code == 2
    assert "VERB" in outcome.err


def test_an_unknown_stage_is_refused_with_the_known_ones() -> None:
    outcome = diagnose_here("run", "--stages", "inferense")
    assert outcome.code == 2
    assert "inferense" in outcome.err
    assert "real_data" in outcome.err


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        ("cuda", "device 'cuda' is not available"),
        ("warp9", "sees only cpu"),
        ("cuda:1", "CUDA_VISIBLE_DEVICES=1"),
    ],
)
def test_a_device_that_is_not_there_is_told(device: str, sentence: str) -> None:
    with pytest.raises(DeviceError, match=sentence):
        open_device(device)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--device", "cuda:1"], "CUDA_VISIBLE_DEVICES=1"),
        (["--size", "huge"], "has no size 'huge'; it has only"),
        (["--label", "../evil"], "cannot name a directory"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    reports = tmp_path / "reports"
    outcome = diagnose_here("run", "--workload", FAULTY, "--reports", reports, *arguments)
    assert outcome.code == 2
    assert sentence in outcome.complaint
    assert not reports.exists()


def test_a_workload_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(
        "from diagnose.workload import Network, Size, Workload\n"
        "WORKLOAD = Workload('x', {'s': Size(1, shape={'layers': [2]})}, Network(id, id), id)"
    )
    outcome = diagnose("run", "--workload", path, "--reports", tmp_path / "reports")
    assert outcome.code == 2
    assert "shape['layers'] is a list" in outcome.complaint


def test_data_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("天地玄黄\t天地玄\n", encoding="utf-8")
    words = ("run", "--size", "tiny", "--data", path, "--reports", tmp_path / "reports")
    outcome = diagnose_here(*words)
    assert outcome.code == 2
    assert "pairs.tsv" in outcome.complaint
    assert "line 1" in outcome.complaint


def test_the_parser_is_strict_about_numbers() -> None:
    assert diagnose_here("run", "--timeout", "-3").code == 2
    soon = diagnose_here("run", "--timeout", "soon")
    assert soon.code == 2
    assert "'soon' is not a positive number of seconds" in soon.err
    assert diagnose_here("run", "--seed", "-1").code == 2
    assert diagnose_here("run", "--quick", "--full").code == 2


def test_report_of_an_unknown_label(tmp_path: Path) -> None:
    outcome = diagnose_here("report", "nothing", "--reports", tmp_path)
    assert outcome.code == 3
    assert "nothing" in outcome.complaint
