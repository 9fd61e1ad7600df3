"""Does every source of sentences give what it should, and every bad file a clear sentence?"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.data import text, vocabulary
from diagnose.workload import WorkloadError

IN_VOCABULARY = [
    vocabulary.decode([index]) for index in range(vocabulary.FIRST_CHARACTER, vocabulary.SIZE)
]


def test_every_id_stands_for_one_character_and_the_vocabulary_is_full() -> None:
    assert len(set(IN_VOCABULARY)) == vocabulary.SIZE - vocabulary.FIRST_CHARACTER
    assert all(len(each) == 1 for each in IN_VOCABULARY)
    ids = vocabulary.encode("".join(IN_VOCABULARY))
    assert ids == list(range(104, 21128))


def test_the_special_ids_are_those_of_bert_base_chinese() -> None:
    assert vocabulary.SPECIAL == {
        0: "[PAD]",
        100: "[UNK]",
        101: "[CLS]",
        102: "[SEP]",
        103: "[MASK]",
    }


@given(st.text(st.sampled_from(IN_VOCABULARY)))
def test_known_characters_survive_the_round_trip(known: str) -> None:
    assert vocabulary.decode(vocabulary.encode(known)) == known


@given(st.text())
def test_any_text_has_one_ordinary_id_per_character(anything: str) -> None:
    ids = vocabulary.encode(anything)
    assert len(ids) == len(anything)
    assert all(index == vocabulary.UNK or 104 <= index < vocabulary.SIZE for index in ids)


def test_a_stranger_is_unknown_and_an_unused_id_is_refused() -> None:
    assert vocabulary.encode("a😀") == [vocabulary.encode("a")[0], vocabulary.UNK]
    with pytest.raises(KeyError):
        vocabulary.decode([7])


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


def test_a_missing_package_says_what_to_install() -> None:
    with pytest.raises(WorkloadError) as caught:
        text.read_package("no_such_language_pack")
    assert str(caught.value) == (
        "the default sentences are missing; run `pip install jupyterlab-language-pack-zh-CN` "
        "or give your own with --data"
    )


def test_a_package_without_catalogues_is_an_error_too() -> None:
    with pytest.raises(WorkloadError, match="holds no Chinese sentence"):
        text.read_package("bench")


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


def test_the_description_names_the_file_but_not_its_folder(tmp_path: Path) -> None:
    assert text.read(write(tmp_path, "mine.txt", "今天\n")).description == "mine.txt"


def test_tsv_holds_pairs(tmp_path: Path) -> None:
    corpus = text.read(write(tmp_path, "p.tsv", "今天田气\t今天天气\r\n\nok\tok\n"))
    assert corpus.pairs == (("今天田气", "今天天气"), ("ok", "ok"))
    assert len(corpus) == 2


def test_jsonl_holds_sentences_or_pairs(tmp_path: Path) -> None:
    sentences = text.read(write(tmp_path, "s.jsonl", '{"text": "今天", "id": 1}\n\n'))
    assert sentences.sentences == ("今天",)
    pairs = text.read(write(tmp_path, "p.jsonl", '{"source": "田", "target": "天"}'))
    assert pairs.pairs == (("田", "天"),)


KEYS = 'each line must be {"text": "..."} or {"source": "...", "target": "..."}'
BAD: dict[str, tuple[str, bytes | str, str]] = {
    "empty": ("a.txt", b"", "data file a.txt is empty"),
    "blank lines": (
        "a.txt",
        "\n \r\n",
        "data file a.txt has no usable sentence: no line holds a Chinese character",
    ),
    "no Chinese": (
        "a.txt",
        "hello\nworld\n",
        "data file a.txt has no usable sentence: no line holds a Chinese character",
    ),
    "binary": (
        "a.txt",
        b"ab\ncd\0",
        "data file a.txt has a NUL byte on line 2 (byte 5), so it is binary or UTF-16; "
        "save it as UTF-8 text",
    ),
    "another encoding": (
        "a.txt",
        "好\r\n".encode() + "今天".encode("gb18030"),
        "data file a.txt is not UTF-8 on line 2 (byte 5); save it as UTF-8",
    ),
    "cut inside a character": (
        "a.txt",
        "今天".encode()[:-1],
        "data file a.txt is not UTF-8 on line 1 (byte 3); save it as UTF-8",
    ),
    "unknown suffix": (
        "a.csv",
        "今天",
        "data file a.csv must end in .txt, .tsv, .jsonl, not in '.csv'",
    ),
    "no suffix": ("a", "今天", "data file a must end in .txt, .tsv, .jsonl, not in ''"),
    "malformed JSON": (
        "a.jsonl",
        '{"text": "今天"}\n\n{"text": ',
        "data file a.jsonl has malformed JSON on line 3: Expecting value: line 1 column 10 "
        "(char 9)",
    ),
    "missing keys": (
        "a.jsonl",
        '{"source": "今天"}',
        f"data file a.jsonl lacks a key on line 1; {KEYS}",
    ),
    "text that is no string": (
        "a.jsonl",
        '{"text": 5}',
        f"data file a.jsonl lacks a key on line 1; {KEYS}",
    ),
    "JSON that is no object": (
        "a.jsonl",
        '{"text": "好"}\n["text"]',
        f"data file a.jsonl lacks a key on line 2; {KEYS}",
    ),
    "sentences and pairs": (
        "a.jsonl",
        '{"text": "好"}\n{"source": "田", "target": "天"}',
        "data file a.jsonl mixes sentences and pairs: line 2 has a source and a target while "
        "others have only a text; split it into two files",
    ),
    "no tab": (
        "a.tsv",
        "田\t天\n今天\n",
        "data file a.tsv has no tab on line 2; each line must be source, tab, target",
    ),
    "three columns": (
        "a.tsv",
        "田\t天\t好\n",
        "data file a.tsv has 3 columns, 0 of them empty, on line 1; "
        "each line must be source, tab, target",
    ),
    "no target": (
        "a.tsv",
        "田\t\n",
        "data file a.tsv has 2 columns, 1 of them empty, on line 1; "
        "each line must be source, tab, target",
    ),
    "one unequal pair": (
        "a.tsv",
        "田\t天\n今天\t今\n",
        "data file a.tsv has 1 line whose source and target differ in length, the first is "
        "line 2 with 2 and 1 characters; correct or remove it",
    ),
    "two unequal pairs": (
        "a.jsonl",
        '\n{"source": "田", "target": "天气"}\n{"source": "天气", "target": "天"}',
        "data file a.jsonl has 2 lines whose source and target differ in length, the first is "
        "line 2 with 1 and 2 characters; correct or remove them",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    name, content, message = BAD[case]
    with pytest.raises(WorkloadError) as caught:
        text.read(write(tmp_path, name, content))
    assert str(caught.value) == message


def test_a_missing_file_is_named_as_it_was_typed(tmp_path: Path) -> None:
    path = tmp_path / "no.txt"
    with pytest.raises(WorkloadError) as caught:
        text.read(path)
    assert str(caught.value) == f"data file {path} does not exist"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "folder.txt"
    folder.mkdir()
    with pytest.raises(WorkloadError) as caught:
        text.read(folder)
    assert str(caught.value) == f"data file {folder} cannot be read: Is a directory"


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
