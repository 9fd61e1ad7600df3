"""How does a clean sentence become one with spelling errors? By the confusions people make.

Chinese is mostly typed by sound, so most wrong characters sound like the right one; some look
like it, and a few are merely common. The shares below are those of the DGCA data generator.
"""

from __future__ import annotations

import importlib.metadata
import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from random import Random
from typing import Literal

from bench.data import vocabulary
from diagnose.workload import WorkloadError

VERSION = 1  # raised whenever the same sentence and seed would give another error

CLEAN_SHARE = 0.15  # sentences that stay correct: a corrector must also learn to do nothing
MEAN_ERRORS = 1.5  # of a Poisson distribution; zero counts as one
RETRIES = 5  # after a draw that changes nothing

Kind = Literal["same sound", "similar sound", "similar shape", "frequent"]
SHARES: Mapping[Kind, float] = {
    "same sound": 0.4,
    "similar sound": 0.3,
    "similar shape": 0.2,
    "frequent": 0.1,
}

CANDIDATES = 16  # of one character, itself among them
FREQUENT_COUNT = 200  # how many of a corpus' characters count as frequent
# Unicode orders its ideographs by Kangxi radical and then by strokes, so near neighbours mostly
# share the radical and nearly the stroke count. A third of them are common: about four are left.
SHAPE_REACH = 6

# Sounds that speakers of many dialects do not tell apart.
_INITIALS = (("zh", "z"), ("ch", "c"), ("sh", "s"), ("n", "l"), ("f", "h"))
_FINALS = (("ang", "an"), ("eng", "en"), ("ing", "in"))
_TONE_MARKS = dict.fromkeys(map(ord, "\u0300\u0301\u0304\u030c"))


def version() -> str:
    """What decides the errors of a sentence besides the seed: this file and the readings."""
    try:
        return f"{VERSION} with pypinyin {importlib.metadata.version('pypinyin')}"
    except importlib.metadata.PackageNotFoundError:
        raise WorkloadError(
            "spelling errors and candidates are made with pypinyin, which is missing; "
            "run `pip install pypinyin`"
        ) from None


def corrupt(sentence: str, frequent: Sequence[str], random: Random) -> str:
    """The sentence with errors in it, equally long; sometimes the sentence itself."""
    places = [place for place, each in enumerate(sentence) if vocabulary.is_han(each)]
    if not places or random.random() < CLEAN_SHARE:
        return sentence
    characters = list(sentence)
    count = min(len(places), max(1, _poisson(MEAN_ERRORS, random)))
    for place in random.sample(places, count):
        characters[place] = replace(characters[place], frequent, random)[0]
    return "".join(characters)


def replace(character: str, frequent: Sequence[str], random: Random) -> tuple[str, Kind | None]:
    """A wrong character and why it is one; the same and None if no draw finds another."""
    for _ in range(1 + RETRIES):
        kind = random.choices(list(SHARES), list(SHARES.values()))[0]
        others = candidates(kind, character, frequent)
        chosen = random.choice(others) if others else character
        if chosen != character:
            return chosen, kind
    return character, None


def candidates(kind: Kind, character: str, frequent: Sequence[str]) -> Sequence[str]:
    if kind == "same sound":
        return _same_sound(character)
    if kind == "similar sound":
        return _similar_sound(character)
    if kind == "similar shape":
        return _similar_shape(character)
    return frequent


def list_candidates(index: int, frequent: Sequence[str], size: int = vocabulary.SIZE) -> list[int]:
    """Which characters may have been meant? The id itself, then those of each kind: none twice."""
    found = {index: None}
    character = vocabulary.decode([index])
    for kind in SHARES:
        # [UNK] stands for any character, so it has neither a sound nor a shape.
        if index == vocabulary.UNK and kind != "frequent":
            continue
        others = candidates(kind, character, frequent)
        known = [each for each in vocabulary.encode("".join(others)) if each < size]
        found.update(dict.fromkeys(known))
        if len(found) >= CANDIDATES:
            break
    return list(found)[:CANDIDATES]


def frequent_characters(sentences: Iterable[str]) -> tuple[str, ...]:
    """The commonest ideographs, equally common ones in code point order."""
    counts = Counter(each for text in sentences for each in text if vocabulary.is_han(each))
    return tuple(sorted(counts, key=lambda each: (-counts[each], each))[:FREQUENT_COUNT])


def _poisson(mean: float, random: Random) -> int:
    """Knuth's method: uniform factors until their product falls below exp(-mean)."""
    count, product = 0, random.random()
    while product > math.exp(-mean):
        count += 1
        product *= random.random()
    return count


@cache
def _common() -> frozenset[str]:
    """GB 2312 is the list of characters in common use; the codec carries it."""
    block = map(chr, range(ord(vocabulary.FIRST_HAN), ord(vocabulary.LAST_HAN) + 1))
    return frozenset(each for each in block if each.encode("gb2312", errors="ignore"))


@cache
def _readings() -> Mapping[int, str]:
    # Imported here: reading its tables takes a fifth of a second that most commands need not pay.
    from pypinyin.pinyin_dict import pinyin_dict

    readings: Mapping[int, str] = pinyin_dict
    return readings


def _sound(character: str) -> str:
    """The commonest reading with its tone mark, empty if none is known."""
    return _readings().get(ord(character), "").split(",")[0]


def _blur(sound: str) -> str:
    """What is left of a sound without its tone and without the distinctions often missed."""
    toneless = unicodedata.normalize("NFD", sound).translate(_TONE_MARKS)
    for clear, vague in _INITIALS:
        if toneless.startswith(clear):
            toneless = vague + toneless.removeprefix(clear)
            break
    for clear, vague in _FINALS:
        if toneless.endswith(clear):
            return toneless.removesuffix(clear) + vague
    return toneless


@cache
def _by_blurred_sound() -> Mapping[str, tuple[str, ...]]:
    groups = defaultdict(list)
    for character in sorted(_common()):
        if sound := _sound(character):
            groups[_blur(sound)].append(character)
    return {blurred: tuple(group) for blurred, group in groups.items()}


@cache
def _same_sound(character: str) -> tuple[str, ...]:
    sound = _sound(character)
    group = _by_blurred_sound().get(_blur(sound), ())
    return tuple(each for each in group if each != character and _sound(each) == sound)


@cache
def _similar_sound(character: str) -> tuple[str, ...]:
    sound = _sound(character)
    return tuple(
        each for each in _by_blurred_sound().get(_blur(sound), ()) if _sound(each) != sound
    )


@cache
def _similar_shape(character: str) -> tuple[str, ...]:
    middle = ord(character)
    reach = map(chr, range(middle - SHAPE_REACH, middle + SHAPE_REACH + 1))
    return tuple(each for each in reach if each != character and each in _common())
