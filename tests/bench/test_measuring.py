"""Measuring everything anew, and the same code against itself: resumable, and both ways."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import evaluated, measure_all, same_code
from bench.measure_all import PARTS, Part, is_done, measure
from bench.prove import pairs, rule
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
# Keeps what it measured in the file that it is told, beside its page.
KEEPING = """
import sys
from pathlib import Path
output = Path(sys.argv[sys.argv.index("--output") + 1])
assert not output.exists()
(output.parent / "log").open("a").write("x")
output.with_suffix(".md").write_text("page")
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


@pytest.mark.parametrize(
    ("wrong", "words"), [(2, "compatible with 5% or less"), (30, "more than 5%")]
)
def test_the_share_of_false_alarms_can_be_too_high_or_not(wrong: int, words: str) -> None:
    text = same_code.summarize([FASTER] * wrong + [EQUAL] * (60 - wrong))
    assert f"{wrong} of 60" in text
    assert text.endswith(words)


def test_what_has_no_interval_is_counted_apart() -> None:
    text = same_code.summarize([FASTER] * 2 + [EQUAL] * 8 + [EQUAL[:1]] * 5)
    assert text.startswith("2 of 10 intervals")
    assert "; 5 more had too few blocks for one" in text
    assert same_code.summarize([EQUAL[:1]]).startswith("no repetition has an interval")


def test_the_interval_of_a_share_is_the_exact_one() -> None:
    low, high = same_code.share_interval(3, 60)
    assert low == pytest.approx(0.0104, abs=2e-4)
    assert high == pytest.approx(0.1392, abs=2e-4)
    assert same_code.share_interval(0, 60)[0] == 0.0


def test_an_ended_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def repeat(workload: str, size: str, effort: str) -> Callable[[int], list[Block]]:
        def run(seed: int) -> list[Block]:
            calls.append(seed)
            return [Block(*each) for each in EQUAL]

        return run

    monkeypatch.setattr(same_code, "repeat", repeat)
    words = [
        "--allow-dirty",
        "--pause",
        "0",
        "--output",
        str(tmp_path / "same.json"),
        "--repetitions",
    ]
    for number in ("2", "5"):
        assert same_code.main([*words, number]) == 0
    assert calls == [0, 1, 2, 3, 4]
    assert len(json.loads((tmp_path / "same.json").read_text())["entries"]) == 5
    # Each workload and neighbor has a count and an interval of its own.
    assert same_code.main([*words, "2", "--workload", "textgen"]) == 0
    assert same_code.main([*words, "3", "--busy"]) == 0
    page = (tmp_path / "same.md").read_text()
    assert "training step of dgca, nothing beside it: 0 of 5 intervals" in page
    assert "plan A, nothing beside it: 0 of 2 intervals" in page
    assert "dgca, beside a process that uses one core in bursts: 0 of 3 intervals" in page
    with pytest.raises(SystemExit, match="other settings"):
        same_code.main([*words, "5", "--size", "tiny"])
    (tmp_path / "same.json").write_text("{")
    with pytest.raises(SystemExit, match="cannot be read"):
        same_code.main([*words, "5"])


@pytest.mark.child
@pytest.mark.parametrize("workload", same_code.SCOPES)
def test_one_experiment_of_the_same_code_runs(workload: str) -> None:
    blocks = same_code.repeat(workload, "tiny", "smoke")(0)
    assert blocks
    assert all(min(each) > 0 for each in blocks)
    assert "torch" in sys.modules


def test_the_neighbor_ends_with_what_it_disturbs() -> None:
    with same_code.neighbor() as busy:
        assert busy.poll() is None
    assert busy.poll() is not None
    orphan = subprocess.Popen([sys.executable, "-c", same_code.NEIGHBOR, "0"])
    assert orphan.wait(timeout=60) == 0, "its parent is not the process that it was started for"


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (rule.main, ["--sessions", "0"]),
        (pairs.main, ["--runs", "-1"]),
        (pairs.main, ["--jobs", "x"]),
        (pairs.main, ["--seconds", "0"]),
        (same_code.main, ["--workload", "bert"]),
        (evaluated.main, ["--samples", "0"]),
    ],
)
def test_a_wrong_number_is_refused(
    main: Callable[[list[str]], object], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_what_is_kept_without_a_label_is_measured_anew_for_another_commit(tmp_path: Path) -> None:
    part = Part("", "evaluated", 1, ("-c", KEEPING))
    for commit in ("abc", "abc", "def"):
        assert measure([part], tmp_path, "p", commit) == 0
        (tmp_path / "evaluated.json").write_text(json.dumps({"settings": {"commit": commit}}))
    assert (tmp_path / "log").read_text() == "xx"


def test_every_batch_size_and_cap_has_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []

    def fake(verb: str, value: int, settings: Any) -> dict[str, Any]:
        asked.append((verb, value))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return {"samples_per_second": 2.0, "duration": 3.0, "score": None, "fallbacks": 0}

    monkeypatch.setattr(evaluated, "measure", fake)
    words = ["--allow-dirty", "--output", str(tmp_path / "evaluated.json")]
    with pytest.raises(KeyboardInterrupt):
        evaluated.main(words)
    assert evaluated.main(words) == 0
    assert [*asked[:2], *asked[3:]] == evaluated.runs(), "it goes on where it was ended"
    page = (tmp_path / "evaluated.md").read_text()
    assert "| `evaluate` | `--batch-size 16` | 2 | 3 | unknown | 0 |" in page
    assert "| `profile-accuracy` | `--max-crops-list 12` | 2 | 3 | unknown | 0 |" in page
