"""Are the generated errors the ones that people make, in the shares that were asked for?"""

from __future__ import annotations

import importlib.metadata
from collections import Counter
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
