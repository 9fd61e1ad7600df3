"""Measuring everything anew, and the same code against itself: resumable, and both ways."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import measure_all, same_code
from bench.measure_all import PARTS, Part, is_done, measure
from diagnose.records.header import Fact
from diagnose.records.sequential import Block

# Leaves the record of a part under the label and in the folder that it is told.
FAKE = """
import json, sys
from pathlib import Path
where = Path(sys.argv[sys.argv.index("--reports") + 1]) / sys.argv[sys.argv.index("--label") + 1]
where.mkdir(parents=True, exist_ok=True)
(where / "log").open("a").write("x")
if "fail" in sys.argv:
    sys.exit(3)
machine = {"git_commit": {"value": "abc"}}
(where / "run.json").write_text(json.dumps({"header": {"machine": machine}, "complete": True}))
"""


def test_what_is_measured_is_not_measured_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    parts = [Part(name, "run", 1, ("-c", FAKE, *words)) for name, *words in (["a"], ["b", "fail"])]
    assert measure(parts, tmp_path, "p", "abc") == 3
    assert "not measured: b/run" in capfd.readouterr().err
    assert is_done(tmp_path, "p", parts[0], "abc")
    assert not is_done(tmp_path, "p", parts[0], "another")
    measure(parts, tmp_path, "p", "abc")
    runs = {each: (tmp_path / f"p-{each}" / "log").read_text() for each in ("a", "b")}
    assert runs == {"a": "x", "b": "xx"}


def test_every_committed_record_has_a_part() -> None:
    reports = Path(measure_all.ROOT / "reports")
    kept = {
        f"{path.parent.name.removeprefix('cpu-')}/{path.stem}"
        for path in reports.glob("cpu-*/*.json")
    }
    links = {f"{each.name}/bandwidth" for each in PARTS if each.record == "run"}
    assert kept <= {each.key for each in PARTS} | links


def test_dirty_code_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_all, "read_commit", lambda path: Fact("abc-dirty"))
    with pytest.raises(SystemExit, match="commit first"):
        measure_all.main([])


EQUAL = [[1.0, 1.01, 0.99], [1.0, 1.02, 1.01], [1.0, 1.01, 1.02]] * 8
FASTER = [[1.0, 1.01, 0.9], [1.02, 1.0, 0.91], [1.0, 1.02, 0.9]] * 8


@pytest.mark.parametrize(("wrong", "words"), [(2, "no more than 5%"), (30, "more than 5%")])
def test_the_share_of_false_alarms_can_be_too_high_or_not(wrong: int, words: str) -> None:
    text = same_code.summarize([FASTER] * wrong + [EQUAL] * (60 - wrong))
    assert f"{wrong} of 60" in text
    assert text.endswith(words)


def test_the_interval_of_a_share_is_the_exact_one() -> None:
    low, high = same_code.share_interval(3, 60)
    assert low == pytest.approx(0.0104, abs=2e-4)
    assert high == pytest.approx(0.1392, abs=2e-4)
    assert same_code.share_interval(0, 60)[0] == 0.0


def test_an_ended_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def repeat(size: str, effort: str) -> Callable[[int], list[Block]]:
        def run(seed: int) -> list[Block]:
            calls.append(seed)
            return [Block(*each) for each in EQUAL]

        return run

    monkeypatch.setattr(same_code, "repeat", repeat)
    words = ["--pause", "0", "--output", str(tmp_path / "same.json"), "--repetitions"]
    for number in ("2", "5"):
        assert same_code.main([*words, number]) == 0
    assert calls == [0, 1, 2, 3, 4]
    assert len(json.loads((tmp_path / "same.json").read_text())["entries"]) == 5
    assert "0 of 5 intervals" in (tmp_path / "same.md").read_text()
    with pytest.raises(SystemExit, match="other settings"):
        same_code.main([*words, "5", "--size", "tiny"])
    (tmp_path / "same.json").write_text("{")
    with pytest.raises(SystemExit, match="cannot be read"):
        same_code.main([*words, "5"])


@pytest.mark.child
def test_one_experiment_of_the_same_code_runs() -> None:
    blocks = same_code.repeat("tiny", "smoke")(0)
    assert blocks
    assert all(min(each) > 0 for each in blocks)
    assert "torch" in sys.modules
