"""Do the two commands differ in what the report changed, and can the verdict go either way?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import whole_command
from bench.dgca.arguments import parse
from bench.kept import Kept
from bench.two_hosts import bytes_per_second

SETTINGS = {"rate": "4gbit", "steps": 3, "scale": 50, "batch_size": 16, "size": "tiny"}


def test_the_commands_are_those_of_the_report() -> None:
    words = [
        whole_command.command(side, SETTINGS, Path("data"), Path("out"))
        for side in whole_command.SIDES
    ]
    original, control, recommended = (parse(each[1:]) for each in words)
    assert original == control
    changed = {
        name: (value, getattr(recommended, name))
        for name, value in vars(original).items()
        if value != getattr(recommended, name)
    }
    assert changed == {
        "gradient_accumulation_steps": (1, 4),
        "ddp_bucket_cap_mb": (25, 200),
        "num_workers": (4, 2),
        "eval_steps": (10, 40),
        "save_steps": (10, 20),
    }


@pytest.mark.parametrize(
    ("recommended", "verdict"), [(0.5, "CONFIRMED"), (2.0, "REFUTED"), (1.0, "not decided")]
)
def test_the_verdict_is_that_of_its_blocks(recommended: float, verdict: str) -> None:
    blocks = [
        {"original": 1 + n / 100, "control": 1.03 - n / 100, "recommended": recommended}
        for n in range(12)
    ]
    assert whole_command.summarize(SETTINGS, blocks).endswith(verdict)
    assert whole_command.summarize(SETTINGS, blocks[:2]).endswith("not decided")


def test_blocks_of_other_settings_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "a" / "blocks.json"
    kept = Kept(path, SETTINGS)
    assert kept.entries == []
    kept.add({"original": 1.0, "control": 1.0, "recommended": 0.9})
    again = Kept(path, SETTINGS)
    assert again.entries == kept.entries
    again.publish("Faster?", "make it", "Yes.")
    page = path.with_suffix(".md").read_text()
    assert page.startswith("# Faster?\n\nWritten by `make it`.\n\nYes.\n")
    assert "| rate | 4gbit |" in page
    assert f"| commit | {again.settings['commit']} |" in page
    with pytest.raises(SystemExit, match="other settings"):
        Kept(path, {**SETTINGS, "rate": "1gbit"})
    path.write_text(json.dumps([]))
    with pytest.raises(SystemExit, match="cannot be read"):
        Kept(path, SETTINGS)


@pytest.mark.parametrize("words", [["--rate", "fast"], ["--blocks", "0"], ["--scale", "x"]])
def test_a_wrong_option_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        whole_command.main(words)
    assert ended.value.code == 2
    assert words[1] in capsys.readouterr().err


def test_rates() -> None:
    assert bytes_per_second("200mbit") == 25e6
    assert bytes_per_second("4gbit") == 5e8
