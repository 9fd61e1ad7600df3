"""Which number stands for which character? A closed form, so that no vocabulary file is needed.

The size and the special ids are those of bert-base-chinese, because they decide the size of
the output layer, its memory and its time. Which character has which id decides none of that.
"""

from __future__ import annotations

from collections.abc import Iterable

SIZE = 21128
PAD, UNK, CLS, SEP, MASK = 0, 100, 101, 102, 103
SPECIAL = {PAD: "[PAD]", UNK: "[UNK]", CLS: "[CLS]", SEP: "[SEP]", MASK: "[MASK]"}

FIRST_CHARACTER = MASK + 1
FIRST_HAN, LAST_HAN = (
    "\u4e00",
    "\u9fa5",
)  # the ideographs of Unicode 1.1, every common one among them

_ASCII = "".join(map(chr, range(0x20, 0x7F)))
_PUNCTUATION = "。，、；：？！…—·～“”‘’（）《》〈〉【】「」『』"
_HAN = "".join(map(chr, range(ord(FIRST_HAN), ord(LAST_HAN) + 1)))


def _is_common(character: str) -> bool:
    """Whether GB 2312 has it in its first level, the 3755 characters of everyday writing."""
    return b"\xb0" <= character.encode("gb2312", errors="ignore")[:1] < b"\xd8"


# The common ones first: a small model takes the beginning of the same vocabulary.
_COMMON = _ASCII + _PUNCTUATION + "".join(filter(_is_common, _HAN))
_ORDER = dict.fromkeys(_COMMON + _HAN)
_IDS = {character: index for index, character in enumerate(_ORDER, start=FIRST_CHARACTER)}
COMMON_SIZE = FIRST_CHARACTER + len(_COMMON)
_TEXTS = SPECIAL | {index: character for character, index in _IDS.items()}
assert max(_TEXTS) < SIZE


def is_han(character: str) -> bool:
    return FIRST_HAN <= character <= LAST_HAN


def encode(text: str, size: int = SIZE) -> list[int]:
    """One id per character, so that source and target stay aligned; [UNK] for a stranger.

    In a vocabulary of a smaller size every character beyond it is a stranger.
    """
    found = (_IDS.get(character, UNK) for character in text)
    return [index if index < size else UNK for index in found]


def decode(ids: Iterable[int]) -> str:
    """The text of the ids; special ids become their names, an unused id is a KeyError."""
    return "".join(_TEXTS[index] for index in ids)
