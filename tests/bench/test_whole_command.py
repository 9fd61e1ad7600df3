"""Do the two commands differ in what the report changed, and can the verdict go either way?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import kept as keeping
from bench import whole_command
from bench.dgca.arguments import parse
from bench.kept import Kept, Page
from bench.two_hosts import bytes_per_second
from diagnose.records.header import Fact

# What the field report types, whichever of its two commands it is.
REPORTED = [
    "--nproc_per_node",
    "--master_port",
    "--do_train",
    "--do_eval",
    "--do_test",
    "--preprocessed_train",
    "--preprocessed_eval",
    "--preprocessed_test",
    "--fp16",
    "--apply_prompt",
    "--mft",
    "--train_batch_size",
    "--gradient_accumulation_steps",
    "--ddp_bucket_cap_mb",
    "--eval_steps",
    "--num_workers",
]
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
    # What they lack of the report is told on the page, and so is what has another value.
    missing = set(REPORTED) - {*words[0]}
    assert missing | {"--train_batch_size", "--eval_steps"} == set(whole_command.CHANGED)
    blocks = [{"original": 1.0, "control": 1.0, "recommended": 0.9}]
    page = whole_command.PAGE.render(SETTINGS, blocks)
    assert all(f"| `{each}` |" in page for each in whole_command.CHANGED)
    assert "16 instead of 128" in page


@pytest.mark.parametrize(
    ("recommended", "verdict"), [(0.5, "faster here"), (2.0, "slower here"), (1.0, "not decided")]
)
def test_the_verdict_is_that_of_its_blocks(recommended: float, verdict: str) -> None:
    blocks = [
        {"original": 1 + n / 100, "control": 1.03 - n / 100, "recommended": recommended}
        for n in range(12)
    ]
    assert whole_command.summarize(SETTINGS, blocks).endswith(verdict)
    assert whole_command.summarize(SETTINGS, blocks[:2]).endswith("not decided")


ASKED = Page("Faster?", "make it", lambda settings, entries: f"{len(entries)} blocks.")


def test_blocks_of_other_settings_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "a" / "blocks.json"
    kept = Kept(path, SETTINGS, allow_dirty=True)
    assert kept.entries == []
    kept.add({"original": 1.0, "control": 1.0, "recommended": 0.9})
    again = Kept(path, SETTINGS, allow_dirty=True)
    assert again.entries == kept.entries
    again.publish(ASKED)
    page = path.with_suffix(".md").read_text()
    assert page.startswith("# Faster?\n\nWritten by `make it`.\n\n1 blocks.\n")
    assert "| rate | 4gbit |" in page
    assert f"| commit | {again.settings['commit']} |" in page
    with pytest.raises(SystemExit, match="other settings"):
        Kept(path, {**SETTINGS, "rate": "1gbit"}, allow_dirty=True)
    path.write_text(json.dumps([]))
    with pytest.raises(SystemExit, match="cannot be read"):
        Kept(path, SETTINGS, allow_dirty=True)


def test_uncommitted_code_keeps_nothing_unless_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for commit, allowed in (("abc-dirty", True), ("abc", False)):
        monkeypatch.setattr(keeping, "read_commit", lambda path, commit=commit: Fact(commit))
        assert Kept(tmp_path / "a.json", {}, allow_dirty=allowed).settings["commit"] == commit
    monkeypatch.setattr(keeping, "read_commit", lambda path: Fact("abc-dirty"))
    with pytest.raises(SystemExit, match="commit first"):
        Kept(tmp_path / "a.json", {})


def keep(folder: Path, commit: str = "abc") -> Path:
    """A record of blocks, and the page of it."""
    path = folder / "whole_command.json"
    blocks = [{"original": 1 + n / 100, "control": 1.0, "recommended": 0.5} for n in range(12)]
    path.write_text(json.dumps({"settings": {**SETTINGS, "commit": commit}, "entries": blocks}))
    assert keeping.main(["--reports", str(folder)]) == 0
    assert "faster here" in path.with_suffix(".md").read_text()
    return path


def test_a_page_must_say_what_its_record_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check = ["--check", "--reports", str(tmp_path)]
    assert keeping.main(check) == 0, "nothing was kept"
    path = keep(tmp_path)
    assert keeping.main(check) == 0
    page = path.with_suffix(".md")
    page.write_text(page.read_text().replace("faster here", "slower here"))
    assert keeping.main(check) == 1
    assert "differs from its record" in capsys.readouterr().err
    keep(tmp_path, "abc-dirty")
    assert keeping.main(check) == 1
    assert "no commit holds" in capsys.readouterr().err
    assert keeping.main([*check, "--allow-dirty"]) == 0
    path.write_text("{")
    assert keeping.main(check) == 1
    assert "cannot be read" in capsys.readouterr().err
    path.unlink()
    assert keeping.main(check) == 1
    assert "no record to prove it" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--rate", "fast"], ["--blocks", "0"], ["--scale", "x"]])
def test_a_wrong_option_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        whole_command.main(words)
    assert ended.value.code == 2
    assert words[1] in capsys.readouterr().err


def test_rates() -> None:
    assert bytes_per_second("200mbit") == 25e6
    assert bytes_per_second("4gbit") == 5e8
