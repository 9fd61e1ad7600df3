"""How does text become ids and back? By characters and known words, or by a tokenizer on disk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

from bench.data import vocabulary

# Rows and columns of the tokens that every view of a picture becomes; the overview comes first.
Views = Sequence[tuple[int, int]]
# A word takes the space before it along, as in the vocabularies of trained models.
_PIECES = re.compile(r" ?[^\W\d_]+|.", re.DOTALL)


class Language(Protocol):
    """What the ids of a model mean."""

    @property
    def pad(self) -> int: ...

    @property
    def ends(self) -> tuple[int, ...]:
        """The marks with which an answer ends."""
        ...

    @property
    def image_token(self) -> int | None:
        """Whose places in a prompt a picture takes; None: the model sees none."""
        ...

    @property
    def picture_marks(self) -> tuple[int, ...]:
        """All ids that only pictures have, where the model must know of them."""
        ...

    def place(self, views: Views) -> list[int]:
        """The ids of a picture."""
        ...

    def encode_prompt(self, text: str, views: Views = ()) -> list[int]:
        """The question as the model wants to be asked, its picture first."""
        ...

    def encode_answer(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


def count_tokens(views: Views) -> int:
    return sum(rows * columns for rows, columns in views)


class CharacterLanguage:
    """For random weights: the project's own vocabulary, so that nothing is downloaded.

    `words` get one id each behind the `characters` first ids of the vocabulary, so that an answer
    in English has as many tokens as a trained vocabulary would give it; all others are spelt.
    """

    pad = vocabulary.PAD
    ends = (vocabulary.SEP,)
    # No text contains it, so its place can be taken by a picture.
    image_token: int | None = vocabulary.MASK
    picture_marks: tuple[int, ...] = ()

    def __init__(self, characters: int = vocabulary.SIZE, words: Sequence[str] = ()) -> None:
        self._characters = characters
        self._ids = {word: characters + place for place, word in enumerate(words)}
        self._words = {index: word for word, index in self._ids.items()}
        self.size = characters + len(words)

    def place(self, views: Views) -> list[int]:
        return [vocabulary.MASK] * count_tokens(views)

    def encode_prompt(self, text: str, views: Views = ()) -> list[int]:
        return [vocabulary.CLS, *self.place(views), *self.encode_answer(text), vocabulary.SEP]

    def encode_answer(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in _PIECES.findall(text):
            known = self._ids.get(piece.strip().lower())
            ids += vocabulary.encode(piece, self._characters) if known is None else [known]
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(self._text_of, tokens)).strip()

    def _text_of(self, token: int) -> str:
        if token in self._words:
            return f" {self._words[token]}"
        try:
            return vocabulary.decode([token])
        except KeyError:  # random weights also write ids that stand for nothing
            return "\ufffd"


class TokenizerLanguage:
    """Of a model on disk: its own tokenizer and, where it has one, its own form of a dialogue."""

    picture_marks: tuple[int, ...] = ()
    after_picture = "\n"

    def __init__(self, tokenizer: Any, ends: tuple[int, ...], image_token: int | None) -> None:
        self.tokenizer = tokenizer
        self.ends = ends
        self.pad = ends[0] if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
        self.image_token = image_token
        self._image = "" if image_token is None else tokenizer.convert_ids_to_tokens(image_token)

    def place(self, views: Views) -> list[int]:
        return self._encode(self._draw(views), add_special_tokens=False)

    def _draw(self, views: Views) -> str:
        return f"{self._mark('start')}{self._image * count_tokens(views)}{self._mark('end')}"

    def encode_prompt(self, text: str, views: Views = ()) -> list[int]:
        text = f"{self._draw(views)}{self.after_picture}{text}" if views else text
        if self.tokenizer.chat_template is None:
            return self._encode(text, add_special_tokens=True)
        asked = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
        )
        return self._encode(asked, add_special_tokens=False)

    def _mark(self, side: str) -> str:
        """What stands before or after a picture; not every model has such marks."""
        return getattr(self.tokenizer, f"{side}_image_token", None) or ""

    def encode_answer(self, text: str) -> list[int]:
        return self._encode(text, add_special_tokens=False)

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text.strip()
