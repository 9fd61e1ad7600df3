"""How are the words of a command line read? Whole numbers, spellings, one sentence of error."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn


class OneSentenceParser(argparse.ArgumentParser):
    """Says what is wrong in one line; the whole usage is for --help."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def hyphenate(words: Sequence[str]) -> list[str]:
    """--save_steps=5 as --save-steps=5; values keep their underscores."""
    result = []
    for word in words:
        name, equals, value = word.partition("=")
        result.append((name.replace("_", "-") if name.startswith("--") else name) + equals + value)
    return result


def count(text: str) -> int:
    return _whole(text, least=1)


def count_or_none(text: str) -> int:
    return _whole(text, least=0)


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of {least} or more")
    return value


def between(text: str, low: float, high: float, expected: str) -> float:
    """The number, which lies inside the ends and is none of them."""
    try:
        value = float(text)
    except ValueError:
        value = low
    if not low < value < high:
        raise argparse.ArgumentTypeError(f"'{text}' is not {expected}")
    return value
