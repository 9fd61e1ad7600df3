"""Do the commands that judge `prove` itself work, and do they judge rightly?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.planted.truth import CASES
from bench.prove import cost, dgca
from bench.prove.pairs import SABOTAGES, TRAIN, judge_planted, judge_sabotage, sabotaged_pairs
from bench.prove.rule import anytime, former, sessions, share_interval
from diagnose.measure.twins.cases import find_lines
from tests.support.cli import ROOT


def said(verdict: str, results: str = "EQUAL", step: int | None = None, **line: Any) -> Any:
    lines = [{"file": "", "line": 0, "before_ms": 2.0, "after_ms": 1.0, **line}]
    equality = {"verdict": results, "step": step}
    return {"speed": {"verdict": verdict}, "equality": equality, "lines": lines}


def test_a_share_has_its_exact_interval() -> None:
    assert share_interval(0, 200) == "0.00 % [0.00, 1.83]"
    assert share_interval(5, 10) == "50.00 % [18.71, 81.29]"
    assert share_interval(10, 10) == "100.00 % [69.15, 100.00]"


def test_the_rule_finds_a_fifth_in_fewer_blocks_than_before() -> None:
    new, old = (list(sessions(rule, "spikes", 1.2, 15)) for rule in (anytime, former))
    assert [each.verdict for each in new] == ["FASTER"] * 15
    assert sum(each.blocks for each in new) < sum(each.blocks for each in old)


def test_the_simulation_writes_its_page(tmp_path: Path) -> None:
    page = tmp_path / "rule.md"
    words = ["-m", "bench.prove.rule", "--sessions", "2", "--output", str(page)]
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True, timeout=120)
    text = page.read_text()
    committed = (ROOT / "reports" / "prove_rule.md").read_text()
    headers = [line for line in text.splitlines() if line.startswith("| machine")]
    assert [line for line in committed.splitlines() if line.startswith("| machine")] == headers


def test_the_page_of_the_cost_says_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speed = {"before_ms": 120.0, "verdict": "FASTER", "blocks": 7}
    speed |= {"ratio": 1.2, "ratio_ci": [1.15, 1.25]}

    def run(folder: Path, *words: str) -> str:
        if "prove" not in words:
            return "20.5" if "100" in words[:2] else "0.5"
        compile((folder / "before.py").read_text(), "before.py", "exec")
        found = {**speed, "before_ms": 0.6} if "--seconds" in words else speed
        return json.dumps({"speed": found, "equality": {"verdict": "EQUAL"}})

    monkeypatch.setattr(cost, "run", run)  # python -m bench.prove.cost takes a minute, alone
    monkeypatch.setattr(cost, "REPORTS", tmp_path)
    cost.main()
    page = (tmp_path / "prove_cost.md").read_text()
    assert "FASTER, 1.200 [1.150, 1.250]x after 7 blocks, results EQUAL" in page
    assert "longer by | 0.100 ms | 0.2 ms |" in page


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the commits of this repository")
def test_the_two_commits_differ_in_the_form_and_are_gone(tmp_path: Path) -> None:
    # python -m bench.prove.dgca proves them; the test of `prove` proves two others.
    with dgca.two_commits(tmp_path):
        found = dgca.git("diff", "--unified=0", dgca.LOOP, dgca.VECTORIZED).splitlines()
        made = dgca.git("rev-parse", dgca.LOOP)
    changed = [
        line[1:].strip() for line in found if line[0] in "+-" and line[:3] not in ("+++", "---")
    ]
    assert changed == [f"{dgca.AS_FOUND},", f"{dgca.OPTIMIZED},"]
    assert dgca.git("for-each-ref", "refs/dgca") == ""
    with dgca.two_commits(tmp_path):
        assert dgca.git("rev-parse", dgca.LOOP) == made  # whenever they are made


def test_every_sabotage_changes_the_script(tmp_path: Path) -> None:
    pairs = list(sabotaged_pairs(tmp_path))
    assert len({pair.after.read_text() for pair in pairs} | {TRAIN.read_text()}) == 1 + len(pairs)
    for pair in pairs:
        compile(pair.after.read_text(), str(pair.after), "exec")


def test_answers_are_judged() -> None:
    case = next(each for each in CASES if each.name == "launch_averages")
    (line, *_) = find_lines(case, case.culprits[0])
    right = said("FASTER", file="slow.py", line=line)
    assert judge_planted(case, right) == {
        "speed": True,
        "results": True,
        "line": True,
        "edit": True,
    }
    beside = said("FASTER", file="slow.py", line=line - 3, edit=[line - 3, line])
    assert judge_planted(case, beside)["line"] is False
    assert judge_planted(case, beside)["edit"] is True
    wrong = said("SAME", "DIVERGES", 1, file="slow.py", line=1)
    assert judge_planted(case, wrong) == dict.fromkeys(("speed", "results", "line", "edit"), False)
    healthy = next(each for each in CASES if each.is_healthy and each.repair.exists())
    assert judge_planted(healthy, said("SAME"))["speed"]
    assert not judge_planted(healthy, said("SLOWER"))["speed"]
    late = next(each for each in SABOTAGES if each.name == "skipped batch")
    assert judge_sabotage(late, said("SAME", "DIVERGES", 9)) == {"results": True}
    assert judge_sabotage(late, said("SAME", "DIVERGES", 8)) == {"results": False}


@pytest.mark.parametrize("kind", ["sabotaged"])
def test_pairs_are_kept_and_not_asked_twice(tmp_path: Path, kind: str) -> None:
    kept = tmp_path / "pairs.json"
    words = ["-m", "bench.prove.pairs", "--kind", kind, "--seconds", "0.5", "--only", "skipped"]
    words += ["--output", str(kept)]
    first = subprocess.run(
        [sys.executable, *words], cwd=ROOT, check=True, timeout=200, capture_output=True, text=True
    )
    assert json.loads(kept.read_text())[kind]["skipped batch"]["results"] == "DIVERGES AT STEP 9"
    assert "| results | 1 of 1: " in kept.with_suffix(".md").read_text()
    again = subprocess.run(
        [sys.executable, *words], cwd=ROOT, check=True, timeout=200, capture_output=True, text=True
    )
    assert first.stdout
    assert not again.stdout
