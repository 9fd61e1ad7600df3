"""Wrong usage gets one sentence and exit code 2; nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import FAULTY, diagnose

VERBS = ("run", "report", "check")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_with_an_example(verb: str) -> None:
    outcome = diagnose(verb, "--help")
    assert outcome.code == 0
    assert f"python -m diagnose {verb}" in outcome.out
    assert "example:" in outcome.out


def test_without_a_verb_the_verbs_are_named() -> None:
    outcome = diagnose()
    assert outcome.code == 2
    assert "VERB" in outcome.err


def test_an_unknown_stage_is_refused_with_the_known_ones() -> None:
    outcome = diagnose("run", "--stages", "inferense")
    assert outcome.code == 2
    assert "inferense" in outcome.err
    assert "real_data" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--device", "cuda"], "device 'cuda' is not available"),
        (["--device", "warp9"], "sees only cpu"),
        (["--device", "cuda:1"], "CUDA_VISIBLE_DEVICES=1"),
        (["--size", "huge"], "has no size 'huge'; it has only"),
        (["--label", "../evil"], "cannot name a directory"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    reports = tmp_path / "reports"
    outcome = diagnose("run", "--workload", FAULTY, "--reports", reports, *arguments)
    assert outcome.code == 2
    assert sentence in outcome.complaint
    assert not reports.exists()


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("import no_such_module_anywhere", "cannot be imported: ModuleNotFoundError"),
        ("def broken(:", "cannot be imported: SyntaxError"),
        ("WORKLOAD = 3", "defines no WORKLOAD = Workload(...)"),
        (
            "from bench.workload import Workload\nWORKLOAD = Workload(name='x', sizes={})",
            "missing 2 required positional arguments: 'model' and 'synthetic_batch'",
        ),
        (
            "from bench.workload import Network, Size, Workload\n"
            "WORKLOAD = Workload('x', {'s': Size(1, shape={'layers': [2]})}, Network(id, id), id)",
            "shape['layers'] is a list",
        ),
    ],
)
def test_a_workload_file_that_is_none(code: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(code)
    outcome = diagnose("run", "--workload", path, "--reports", tmp_path / "reports")
    assert outcome.code == 2
    assert sentence in outcome.complaint


def test_a_workload_that_does_not_exist() -> None:
    assert "no workload 'brt'; use bert" in diagnose("run", "--workload", "brt").complaint


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("empty.txt", b"", "empty"),
        ("binary.txt", "天地玄黄\0宇宙洪荒".encode(), "binary"),
        ("latin.txt", "天地玄黄".encode("gb18030"), "UTF-8"),
        ("pairs.tsv", "天地玄黄\t天地玄\n".encode(), "line 1"),
        ("table.csv", b"a,b", "csv"),
    ],
)
def test_data_that_cannot_be_used(name: str, content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    outcome = diagnose("run", "--size", "tiny", "--data", path, "--reports", tmp_path / "reports")
    assert outcome.code == 2
    assert name in outcome.complaint
    assert sentence in outcome.complaint


def test_the_parser_is_strict_about_numbers() -> None:
    assert diagnose("run", "--timeout", "-3").code == 2
    soon = diagnose("run", "--timeout", "soon")
    assert soon.code == 2
    assert "'soon' is not a positive number of seconds" in soon.err
    assert diagnose("run", "--seed", "-1").code == 2
    assert diagnose("run", "--quick", "--full").code == 2


def test_report_of_an_unknown_label(tmp_path: Path) -> None:
    outcome = diagnose("report", "nothing", "--reports", tmp_path)
    assert outcome.code == 3
    assert "nothing" in outcome.complaint
