"""Are the tensors those of ReLM, and is the cache right even when it is damaged or contended?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.data import confusion, tensors, vocabulary
from bench.data.confusion import list_candidates
from bench.data.tensors import SentencePairs, cache_path, make_pairs, prepare, summarize, to_tensors
from bench.data.text import Corpus
from diagnose.workload import WorkloadError
from tests.support.cli import ROOT

CLEAN = Corpus("clean.txt", "c" * 64, sentences=("今天天气好", "我们去看山水", "他说得很对"))
PAIRS = Corpus("pairs.tsv", "p" * 64, pairs=(("今田", "今天"), ("好", "好"), ("a" * 40, "b" * 40)))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIAGNOSE_CACHE", str(tmp_path))
    return tmp_path


def test_a_row_is_what_it_is_by_hand() -> None:
    (wrong,), (right,), (same,) = map(vocabulary.encode, "田天今")
    made = to_tensors([("今田", "今天")], 16)
    assert made["input_ids"].tolist() == [
        [101, 101, 101, same, wrong, 102, 102, 102, 103, 103, 0, 0, 0, 0, 0, 0]
    ]
    assert made["attention_mask"].tolist() == [[1] * 10 + [0] * 6]
    assert made["labels"].tolist() == [[-100] * 8 + [same, right] + [-100] * 6]
    assert made["characters"].tolist() == [2]
    assert made["erroneous"].tolist() == [True]
    assert made["trg_ref_ids"].tolist() == [
        [101, 101, 101, same, right, 102, 102, 102, same, wrong, 0, 0, 0, 0, 0, 0]
    ]
    assert made["block_flag"].tolist() == [[1, 1, 1, 0, 0, 1, 1, 1] + [0] * 8]
    assert made["error_labels"].tolist() == [[-100] * 3 + [0, 1] + [-100] * 11]
    assert {made[name].dtype for name in tensors.PLAIN_INPUTS} == {torch.int64}


def test_a_place_and_its_mask_carry_the_candidates_of_the_source_character() -> None:
    source = "今田x😀"
    made = to_tensors([(source, "今天x😀")], 20)["candidate_ids"][0]
    assert made.shape == (20, 16)
    assert made[3:7, 0].tolist() == vocabulary.encode(source)
    assert torch.equal(made[3:7], made[10:14])
    elsewhere = torch.cat([made[:3], made[7:10], made[14:]])
    assert (elsewhere == vocabulary.PAD).all()


def test_candidates_come_by_sound_then_shape_then_frequency_and_never_twice() -> None:
    frequent = tuple("的一是今")
    (index,) = vocabulary.encode("今")
    sounds = [
        each
        for kind in ("same sound", "similar sound")
        for each in confusion.candidates(kind, "今", frequent)
    ]
    assert vocabulary.decode(list_candidates(index, frequent)) == "今" + "".join(sounds[:15])
    # A letter has no sound and no shape here, a stranger not even a character.
    (letter,) = vocabulary.encode("x")
    assert vocabulary.decode(list_candidates(letter, frequent)) == "x的一是今"
    assert vocabulary.decode(list_candidates(vocabulary.UNK, frequent)) == "[UNK]的一是今"
    for each in vocabulary.encode("中文语言二儿"):
        listed = list_candidates(each, frequent)
        assert listed[0] == each
        assert len(set(listed)) == len(listed) <= 16


def test_only_the_tensors_asked_for_are_held() -> None:
    for hold in ("mmap", "preload"):
        made = prepare(CLEAN, 32, 8, hold, names=tensors.PLAIN_INPUTS)
        assert "candidate_ids" not in made
        assert list(SentencePairs(made, hold)[0]) == ["input_ids", "attention_mask", "labels"]


def test_a_sentence_is_cut_to_its_half_of_the_row_and_errors_beyond_do_not_count() -> None:
    made = to_tensors([("天" * 199 + "田", "天" * 200)], 128)
    assert made["attention_mask"].sum() == 128
    assert (made["input_ids"] == vocabulary.MASK).sum() == 61
    assert (made["labels"] != -100).sum() == 61
    assert made["characters"].tolist() == [200]
    assert made["erroneous"].tolist() == [False]


def test_a_length_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="length 7 leaves no room for a character; use 8 or more"):
        to_tensors([("天", "天")], 7)


def test_a_small_corpus_is_repeated_with_errors_of_its_own_and_pairs_as_they_are() -> None:
    made = make_pairs(CLEAN, 60)
    for sentence in CLEAN.sentences:
        copies = [source for source, target in made if target == sentence]
        assert len(copies) == 20
        assert len(set(copies)) > 5
    assert made == make_pairs(CLEAN, 60)
    assert made != make_pairs(CLEAN, 60, seed=43)
    given = make_pairs(PAIRS, 7)
    assert len(given) == 7
    assert set(given) == set(PAIRS.pairs)


def test_mapped_rows_are_copies_of_the_preloaded_ones() -> None:
    mapped, preloaded = (
        SentencePairs(prepare(CLEAN, 32, 20, hold), hold) for hold in ("mmap", "preload")
    )
    assert len(mapped) == len(preloaded) == 20
    for row in range(20):
        assert list(mapped[row]) == list(tensors.INPUTS)
        for name, tensor in mapped[row].items():
            assert torch.equal(tensor, preloaded[row][name])
    for rows, shared in ((mapped, False), (preloaded, True)):
        storage = rows.tensors["labels"].untyped_storage().data_ptr()
        assert (rows[0]["labels"].untyped_storage().data_ptr() == storage) is shared


def test_the_second_time_the_file_is_read_not_written() -> None:
    prepare(CLEAN, 32, 8, "mmap")
    path = cache_path(CLEAN, 32, 8)
    before = path.stat().st_mtime_ns, path.stat().st_ino
    prepare(CLEAN, 32, 8, "preload")
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before


def test_whatever_changes_the_content_changes_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = Corpus(CLEAN.description, "d" * 64, sentences=CLEAN.sentences)
    names = {
        cache_path(CLEAN, 32, 8),
        cache_path(CLEAN, 64, 8),
        cache_path(CLEAN, 32, 9),
        cache_path(CLEAN, 32, 8, seed=1),
        cache_path(renamed, 32, 8),
    }
    monkeypatch.setattr(confusion, "VERSION", confusion.VERSION + 1)
    names.add(cache_path(CLEAN, 32, 8))
    monkeypatch.setattr(tensors, "FORMAT", tensors.FORMAT + 1)
    names.add(cache_path(CLEAN, 32, 8))
    assert len(names) == 7


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    # In the middle of a tensor: torch alone would load it without complaint.
    labels = torch.load(path, weights_only=True)["labels"].numpy().tobytes()
    content[content.index(labels) + len(labels) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: os.truncate(path, path.stat().st_size // 2),
        lambda path: os.truncate(path, 0),
        flip_a_bit,
        lambda path: torch.save({"input_ids": torch.zeros(8, 32)}, path),
    ],
    ids=["truncated", "empty", "flipped", "lacking"],
)
@pytest.mark.parametrize("hold", ["mmap", "preload"])
def test_a_damaged_file_is_built_again(
    damage: Callable[[Path], object], hold: tensors.Hold, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = {name: t.clone() for name, t in prepare(CLEAN, 32, 8, "preload").items()}
    path = cache_path(CLEAN, 32, 8)
    damage(path)
    again = prepare(CLEAN, 32, 8, hold)
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.items())
    warning = capsys.readouterr().err
    assert warning.startswith(f"warning: cache file {path.name} is damaged and is built again (")
    assert warning.count("\n") == 1
    prepare(CLEAN, 32, 8, hold)
    assert capsys.readouterr().err == ""


BUILD_WHEN_TOLD = """
from bench.data.tensors import prepare
from tests.bench.test_data_tensors import CLEAN
print("ready", flush=True)
input()
print(prepare(CLEAN, 32, 2000, "mmap")["input_ids"].sum().item())
"""


def test_two_processes_may_build_the_same_file_at_once(cache: Path) -> None:
    words = [sys.executable, "-c", BUILD_WHEN_TOLD]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    children = [subprocess.Popen(words, cwd=ROOT, text=True, **pipes) for _ in range(2)]
    assert [child.stdout.readline() for child in children if child.stdout] == ["ready\n"] * 2
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [child.communicate(timeout=60) for child in children]
    expected = prepare(CLEAN, 32, 2000, "preload")["input_ids"].sum().item()
    assert answers == [(f"{expected}\n", "")] * 2
    assert [path.suffix for path in (cache / "data").iterdir()] == [".pt"]


def test_a_cache_that_cannot_be_written_says_what_to_do(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(WorkloadError, match="No space left on device"):
        prepare(CLEAN, 32, 8, "mmap")
    assert list((cache / "data").iterdir()) == [], "nothing is left behind"
    blocked = cache / "a file, not a folder"
    blocked.touch()
    monkeypatch.setenv("DIAGNOSE_CACHE", str(blocked))
    with pytest.raises(WorkloadError, match="Not a directory; set DIAGNOSE_CACHE to a folder"):
        prepare(CLEAN, 32, 8, "mmap")


def test_the_summary_counts_what_is_there() -> None:
    summary = summarize(PAIRS, 16, 6)  # room for five characters
    assert summary.description == "pairs.tsv, given pairs"
    assert summary.sha256 == PAIRS.sha256
    assert (summary.sentences, summary.rows, summary.erroneous_rows) == (3, 6, 4)
    assert summary.length_quantiles == {"p10": 1.0, "p50": 2.0, "p90": 40.0, "max": 40.0}
    # Rows of 2, 1 and 5 characters fill 10, 8 and 16 of 16 places.
    assert summary.padding_share == pytest.approx(1 - (10 + 8 + 16) / 48)


def test_rows_of_a_small_vocabulary_stay_inside_it() -> None:
    pairs = [("今田很好饕", "今天很好饕"), ("我们去北京", "我们去北京")]
    size = vocabulary.COMMON_SIZE
    rows = to_tensors(pairs, 20, size)
    for name in ("input_ids", "labels", "trg_ref_ids", "candidate_ids"):
        assert int(rows[name].max()) < size, name
    assert vocabulary.UNK in rows["input_ids"][0].tolist()
    for place in rows["candidate_ids"].flatten(0, 1).tolist():
        listed = [each for each in place if each != vocabulary.PAD]
        assert len(set(listed)) == len(listed), "no candidate twice"
