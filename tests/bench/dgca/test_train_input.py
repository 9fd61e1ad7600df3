"""Is what cannot be trained on refused in one sentence, and never executed?"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench.data import vocabulary
from bench.data.tensors import IGNORED, INPUTS
from bench.dgca import preprocess
from bench.dgca.arguments import parse
from tests.support.dgca_runs import Attack, Data, make_data, refuse


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return make_data(tmp_path_factory.mktemp("data"))


def test_hyphens_and_underscores_are_the_same() -> None:
    words = ["--do_train", "--preprocessed_train", "my_data/a_b.pt", "--ddp_bucket_cap_mb=200"]
    words += ["--ddp_static_graph", "--prefetch_factor", "4", "--preload_data"]
    options = parse(words)
    assert (
        parse([each.replace("_", "-") if each.startswith("--") else each for each in words])
        == options
    )
    assert options.preprocessed_train == Path("my_data/a_b.pt")
    assert (options.ddp_bucket_cap_mb, options.prefetch_factor) == (200, 4)


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--colour", "red"], "unrecognized arguments: --colour red"),
        (["--save_steps", "0"], "'0' is not a whole number of 1 or more"),
        (["--learning_rate", "nan"], "'nan' is not a positive number"),
        (["--do_eval"], "--do-eval needs --preprocessed-eval"),
        (["--ddp_static_graph", "--gradient_accumulation_steps", "2"], "does not work with"),
        (["--gradient_accumulation_steps", "5"], "cannot be divided into 5 micro-batches"),
        (["--train_batch_size", "500"], "has 320 rows, fewer than one step"),
        (["--size", "huge"], "no size 'huge'; it has seed, small, ranks, tiny"),
        (["--device", "abacus"], "there is no device 'abacus'"),
        (["--preprocessed_train", "missing.pt"], "missing.pt does not exist"),
        (["--resume", "missing"], "there is no checkpoint in missing"),
        (["--resume"], "start without --resume"),
    ],
)
def test_wrong_options_are_refused(
    more: list[str], complaint: str, data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaint in refuse(data.training(tmp_path / "out", *more), capsys)
    assert not (tmp_path / "out").exists()


Rows = dict[str, Tensor]


def replaced(name: str, make: Callable[[Tensor], Tensor]) -> Callable[[Rows], object]:
    return lambda rows: {**rows, name: make(rows[name])}


def put(name: str, place: tuple[int, ...], value: int) -> Callable[[Rows], object]:
    def change(rows: Rows) -> object:
        rows[name][place] = value
        return rows

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (put("input_ids", (3, 4), 21128), "from 0 to 21128 where 0 to 21127 is possible"),
        (put("candidate_ids", (0, 0, 0), -1), "candidate_ids from -1"),
        (put("block_flag", (2, 0), 0), "rows without their 6 prompt slots"),
        (lambda rows: {"labels": rows["labels"]}, "lacks input_ids, attention_mask, trg_ref_ids"),
        (replaced("labels", lambda each: each[:, :-1]), "labels of shape (320, 31) where this"),
        (replaced("labels", lambda each: each[:-1]), "labels of shape (319, 32)"),
        (replaced("labels", lambda each: each.float()), "labels as torch.float32"),
        (lambda rows: {name: each[:0] for name, each in rows.items()}, "has no rows"),
        (lambda rows: list(rows.values()), "holds no dict of tensors"),
    ],
)
def test_wrong_data_are_refused(
    change: Callable[[Rows], object],
    complaint: str,
    data: Data,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = tmp_path / "bad.pt"
    torch.save(change(torch.load(data.file("train"), weights_only=True)), bad)
    sentence = refuse(data.training(tmp_path / "out", "--preprocessed_train", bad), capsys)
    assert sentence.startswith("data file bad.pt ")
    assert complaint in sentence


@pytest.mark.parametrize("kind", ["truncated", "damaged", "text", "pickle", "pickle in an archive"])
def test_a_file_that_holds_no_tensors_is_refused_and_not_executed(
    kind: str, data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, sentinel = tmp_path / "bad.pt", tmp_path / "executed"
    content = bytearray(data.file("train").read_bytes())
    content[len(content) // 2] ^= 255
    if kind == "pickle in an archive":
        torch.save({"input_ids": Attack(sentinel)}, bad)
    else:
        contents = {
            "truncated": bytes(content[:-2000]),
            "damaged": bytes(content),
            "text": b"no tensors",
            "pickle": pickle.dumps(Attack(sentinel)),
        }
        bad.write_bytes(contents[kind])
    sentence = refuse(data.training(tmp_path / "out", "--preprocessed_train", bad), capsys)
    assert "bad.pt is damaged" in sentence or "bad.pt is no file of tensors" in sentence
    assert not sentinel.exists()


def test_an_empty_request_and_a_pickled_checkpoint_are_refused(
    data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "nothing to do" in refuse([], capsys)
    words = ["--do_test", "--preprocessed_test", "test.pt"]
    assert "name a checkpoint with --resume" in refuse(words, capsys)
    sentinel = tmp_path / "executed"
    torch.save(Attack(sentinel), tmp_path / "model.pt")
    words = data.training(tmp_path / "out", "--resume", tmp_path / "model.pt")
    assert "are never loaded" in refuse(words, capsys)
    assert not sentinel.exists()


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
