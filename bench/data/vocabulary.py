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

_IDS = {
    character: index
    for index, character in enumerate(_ASCII + _PUNCTUATION + _HAN, start=FIRST_CHARACTER)
}
_TEXTS = SPECIAL | {index: character for character, index in _IDS.items()}
assert max(_TEXTS) < SIZE


def is_han(character: str) -> bool:
    return FIRST_HAN <= character <= LAST_HAN


def encode(text: str) -> list[int]:
    """One id per character, so that source and target stay aligned; [UNK] for a stranger."""
    return [_IDS.get(character, UNK) for character in text]


def decode(ids: Iterable[int]) -> str:
    """The text of the ids; special ids become their names, an unused id is a KeyError."""
    return "".join(_TEXTS[index] for index in ids)
