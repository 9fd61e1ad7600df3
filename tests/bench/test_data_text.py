"""Does every source of sentences give what it should, and every bad file a clear sentence?"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.data import confusion, text, vocabulary
from bench.data.confusion import candidates, corrupt, frequent_characters, replace
from diagnose.workload import WorkloadError

SENTENCES = text.read(None).sentences
FREQUENT = frequent_characters(SENTENCES)
DRAWS = 20_000


@given(st.text(max_size=40), st.integers())
def test_only_chinese_characters_change_and_the_length_never_does(sentence: str, seed: int) -> None:
    changed = corrupt(sentence, FREQUENT, Random(seed))
    assert len(changed) == len(sentence)
    for before, after in zip(sentence, changed, strict=True):
        assert before == after or (vocabulary.is_han(before) and vocabulary.is_han(after))


def test_the_share_of_clean_sentences_and_the_number_of_errors() -> None:
    random = Random(42)
    sentence = "中文是我们每天都要说的语言文字"
    counts = []
    for _ in range(DRAWS):
        changed = corrupt(sentence, FREQUENT, random)
        counts.append(sum(a != b for a, b in zip(sentence, changed, strict=True)))
    clean = counts.count(0) / DRAWS
    assert 0.13 < clean < 0.17
    erroneous = [count for count in counts if count]
    # E[max(1, Poisson(1.5))] = 1.5 + P(0) = 1.5 + 0.223
    assert 1.65 < sum(erroneous) / len(erroneous) < 1.80


def test_the_kinds_of_error_have_their_shares() -> None:
    random = Random(42)
    kinds = Counter(replace("是", FREQUENT, random)[1] for _ in range(DRAWS))
    for kind, share in confusion.SHARES.items():
        # Five standard deviations of a share of 20 000 draws are at most 0.018.
        assert abs(kinds[kind] / DRAWS - share) < 0.02


def test_each_kind_on_examples() -> None:
    assert {"终", "钟", "忠"} <= set(candidates("same sound", "中", FREQUENT))
    assert "中" not in candidates("same sound", "中", FREQUENT)
    similar = set(candidates("similar sound", "中", FREQUENT))
    assert {"种", "宗"} <= similar  # another tone; zh heard as z
    assert not similar & set(candidates("same sound", "中", FREQUENT))
    assert {"亲", "心", "吕", "护"} <= {
        *candidates("similar sound", "请", FREQUENT),  # qing, qin
        *candidates("similar sound", "星", FREQUENT),  # xing, xin
        *candidates("similar sound", "女", FREQUENT),  # nü, lü
        *candidates("similar sound", "父", FREQUENT),  # fu, hu
    }
    assert {"诵", "说", "读"} <= set(candidates("similar shape", "请", FREQUENT))
    assert candidates("frequent", "请", FREQUENT) == FREQUENT


def test_a_character_without_candidates_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confusion, "SHARES", {"frequent": 1.0})
    assert replace("是", ("是",), Random(0)) == ("是", None)
    assert replace("是", (), Random(0)) == ("是", None)


def test_frequent_characters_come_in_order_and_ties_by_code_point() -> None:
    assert frequent_characters(["好好的，的天", "abc"]) == ("好", "的", "天")
    assert len(FREQUENT) == confusion.FREQUENT_COUNT


def test_missing_readings_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    assert "pypinyin" in confusion.version()
    monkeypatch.setattr(importlib.metadata, "version", find_nothing)
    with pytest.raises(WorkloadError) as caught:
        confusion.version()
    assert str(caught.value) == (
        "spelling errors and candidates are made with pypinyin, which is missing; "
        "run `pip install pypinyin`"
    )


IN_VOCABULARY = [
    vocabulary.decode([index]) for index in range(vocabulary.FIRST_CHARACTER, vocabulary.SIZE)
]


def test_every_id_stands_for_one_character_and_the_vocabulary_is_full() -> None:
    assert len(set(IN_VOCABULARY)) == vocabulary.SIZE - vocabulary.FIRST_CHARACTER
    assert all(len(each) == 1 for each in IN_VOCABULARY)
    ids = vocabulary.encode("".join(IN_VOCABULARY))
    assert ids == list(range(104, 21128))


@given(st.text())
def test_any_text_has_one_ordinary_id_per_character(anything: str) -> None:
    ids = vocabulary.encode(anything)
    assert len(ids) == len(anything)
    assert all(index == vocabulary.UNK or 104 <= index < vocabulary.SIZE for index in ids)


def test_the_package_gives_many_sorted_distinct_chinese_sentences() -> None:
    corpus = text.read(None)
    assert 2000 < len(corpus.sentences) < 5000
    assert list(corpus.sentences) == sorted(set(corpus.sentences))
    for sentence in corpus.sentences:
        assert sum(map(vocabulary.is_han, sentence)) >= 5
        assert sentence == sentence.strip()
        assert "\n" not in sentence
    assert "BSD" in corpus.description
    assert corpus == text.read(None)


@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        ("no_such_language_pack", "run `pip install jupyterlab-language-pack-zh-CN` or give your"),
        ("bench", "holds no Chinese sentence"),
    ],
)
def test_a_package_that_is_missing_or_empty_says_what_to_install(
    module: str, complaint: str
) -> None:
    with pytest.raises(WorkloadError, match=complaint):
        text.read_package(module)


def write(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_text_has_one_sentence_per_line_whatever_the_line_ends(tmp_path: Path) -> None:
    content = "\ufeff今天天气好\r\n\r\n  明天呢\u2028后天 \rEnglish only\n".encode()
    corpus = text.read(write(tmp_path, "mine.txt", content))
    assert corpus.sentences == ("今天天气好", "明天呢\u2028后天")
    assert corpus.pairs == ()
    assert corpus.sha256 == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("name", "content", "sentences", "pairs"),
    [
        (
            "p.tsv",
            "今天田气\t今天天气\r\n\nok\tok\n",
            (),
            (("今天田气", "今天天气"), ("ok", "ok")),
        ),
        ("s.jsonl", '{"text": "今天", "id": 1}\n\n', ("今天",), ()),
        ("p.jsonl", '{"source": "田", "target": "天"}', (), (("田", "天"),)),
    ],
)
def test_files_hold_sentences_or_pairs(
    name: str, content: str, sentences: object, pairs: object, tmp_path: Path
) -> None:
    corpus = text.read(write(tmp_path, name, content))
    assert (corpus.description, corpus.sentences, corpus.pairs) == (name, sentences, pairs)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.txt", b"", "a.txt is empty"),
        ("a.txt", "\n \r\nhello\n", "has no usable sentence: no line holds a Chinese character"),
        ("a.txt", b"ab\ncd\0", "has a NUL byte on line 2 (byte 5), so it is binary or UTF-16"),
        ("a.txt", "好\r\n".encode() + "今天".encode("gb18030"), "is not UTF-8 on line 2 (byte 5)"),
        ("a.txt", "今天".encode()[:-1], "is not UTF-8 on line 1 (byte 3)"),
        ("a.csv", "今天", "must end in .txt, .tsv, .jsonl, not in '.csv'"),
        (
            "a.jsonl",
            '{"text": "今天"}\n\n{"text": ',
            "has malformed JSON on line 3: ",
        ),
        ("a.jsonl", '{"source": "今天"}', "lacks a key on line 1; each line must be"),
        ("a.jsonl", '{"text": 5}', "lacks a key on line 1"),
        ("a.jsonl", '{"text": "好"}\n["text"]', "lacks a key on line 2"),
        (
            "a.jsonl",
            '{"text": "好"}\n{"source": "田", "target": "天"}',
            "mixes sentences and pairs: line 2 has a source and a target",
        ),
        ("a.tsv", "田\t天\n今天\n", "has no tab on line 2; each line must be source, tab, target"),
        ("a.tsv", "田\t天\t好\n", "has 3 columns, 0 of them empty, on line 1"),
        ("a.tsv", "田\t\n", "has 2 columns, 1 of them empty, on line 1"),
        (
            "a.tsv",
            "田\t天\n今天\t今\n",
            "has 1 line whose source and target differ in length, the first is line 2 with 2 and 1 "
            "characters; correct or remove it",
        ),
        ("missing", "", "missing.txt does not exist"),
        ("folder.txt", "", "folder.txt cannot be read: Is a directory"),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(
    name: str, content: bytes | str, complaint: str, tmp_path: Path
) -> None:
    if name == "missing":
        path = tmp_path / "missing.txt"
    elif name == "folder.txt":
        path = tmp_path / name
        path.mkdir()
    else:
        path = write(tmp_path, name, content)
    with pytest.raises(WorkloadError) as caught:
        text.read(path)
    assert complaint in str(caught.value)
    assert str(caught.value).startswith("data file ")
    assert "\n" not in str(caught.value)


def test_json_nested_too_deeply_is_malformed_not_a_crash(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"malformed JSON on line 1: "):
        text.read(write(tmp_path, "deep.jsonl", "[" * 200_000))


def test_a_small_vocabulary_is_the_beginning_of_the_large_one() -> None:
    size = vocabulary.COMMON_SIZE
    assert size == vocabulary.FIRST_CHARACTER + 95 + 27 + 3755
    common, rare = "的一是在不了有和人这", "饕餮魑魅"
    assert vocabulary.encode(common, size) == vocabulary.encode(common)
    assert vocabulary.encode(rare, size) == [vocabulary.UNK] * len(rare)
    assert min(vocabulary.encode(rare)) >= size
