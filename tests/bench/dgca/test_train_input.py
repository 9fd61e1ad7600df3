from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

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
