from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.data import vocabulary
from bench.data.tensors import IGNORED, INPUTS
from bench.dgca import preprocess

NAMES = ("train", "dev", "test")


def targets(path: Path) -> list[str]:
    labels = torch.load(path, weights_only=True)["labels"]
    return [vocabulary.decode(row[row != IGNORED].tolist()) for row in labels]


def test_three_files_share_no_sentence(tmp_path: Path) -> None:
    # Ten errors for each sentence: a split by rows instead of sentences would mix them.
    data = tmp_path / "text.txt"
    data.write_text(
        "\n".join(f"第{first}{second}句话不同" for first in "一二三四五" for second in "甲乙丙丁")
    )
    words = ["--output", tmp_path, "--data", data, "--rows", 200, "--length", 32]
    assert preprocess.main([str(word) for word in words]) == 0
    found = {name: targets(tmp_path / f"{name}.pt") for name in NAMES}
    assert {name: len(rows) for name, rows in found.items()} == {
        "train": 160,
        "dev": 20,
        "test": 20,
    }
    sets = [set(found[name]) for name in NAMES]
    assert [len(each) for each in sets] == [16, 2, 2]
    assert len(set.union(*sets)) == 20


def test_sentences_that_are_cut_to_the_same_text_stay_together(tmp_path: Path) -> None:
    data = tmp_path / "pairs.tsv"
    room = 32 // 2 - 3
    pairs = [
        (f"{'错' + start * room}{end}", f"{'对' + start * room}{end}")
        for start in "甲乙丙"
        for end in "子丑寅卯"
    ]
    data.write_text("\n".join("\t".join(pair) for pair in pairs))
    assert preprocess.main(["--output", str(tmp_path), "--data", str(data), "--length", "32"]) == 0
    sets = [set(targets(tmp_path / f"{name}.pt")) for name in NAMES]
    assert [len(each) for each in sets] == [1, 1, 1]
    assert len(set.union(*sets)) == 3


def test_the_seed_decides_the_content(tmp_path: Path) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        words = ["--output", str(tmp_path / name), "--rows", "30", "--length", "32", "--seed", seed]
        assert preprocess.main(words) == 0
    tensors = torch.load(tmp_path / "a" / "train.pt", weights_only=True, mmap=True)
    assert set(tensors) == set(INPUTS)
    assert tensors["candidate_ids"].shape == (24, 32, 16)
    first, again, other = ((tmp_path / name / "train.pt").read_bytes() for name in "abc")
    assert first == again != other


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--data", "missing.txt"], "missing.txt does not exist"),
        (["--data", "few.txt"], "2 different sentences cannot be split"),
        (["--data", "few.csv"], "must end in"),
        (["--length", "7"], "leaves no room for a character"),
        (["--length", "many"], "'many' is not a whole number"),
        (["--rows", "0"], "'0' is not a whole number of 1 or more"),
        (["--output", "few.txt/below"], "cannot be written"),
        (["--colour", "red"], "unrecognized arguments: --colour"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    words: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("few.txt", "few.csv"):
        Path(name).write_text("今天天气很好\n明天会下雨吗\n今天天气很好\n")
    code: int | str | None
    try:
        code = preprocess.main(["--output", "out", *words])
    except SystemExit as ending:
        code = ending.code
    lines = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert len(lines) == 1
    assert complaint in lines[0]
    assert not Path("out").exists()
