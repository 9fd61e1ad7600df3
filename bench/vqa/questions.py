"""What is asked about a picture? Questions on one photograph, or those of a user's file.

Questions and answers are written by hand, most of one word and a few longer, because lengths
decide how many tokens an evaluation writes. They are no sample of any data set: what share of
them fits into a limit says nothing about real answers; for that give a file of your own.
"""

from __future__ import annotations

import re
from pathlib import Path

from bench.generation.contract import Question
from bench.generation.questions import read_questions
from bench.vqa.views import open_views

# In an order in which short and long answers, and so their costs, are spread.
ASKED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Is this a woman?", ("yes",)),
    ("What is on her nose?", ("glasses", "eyeglasses")),
    ("How many people are in the picture?", ("one", "1")),
    ("Is she outdoors?", ("no",)),
    ("What is on her head?", ("hat", "cap")),
    ("What is she wearing?", ("navy uniform", "a uniform", "uniform")),
    ("Are her eyes open?", ("yes",)),
    ("What is behind her on the left?", ("flag", "american flag")),
    ("Is this a drawing?", ("no",)),
    (
        "Describe the picture.",
        (
            "the portrait of an old woman who is an officer of the navy "
            "with a hat and glasses in front of a flag",
        ),
    ),
    ("Is the picture in color?", ("yes",)),
    ("Is there a dog?", ("no",)),
    ("Which country does the flag belong to?", ("united states", "usa", "america")),
    ("Is she young?", ("no",)),
    ("What kind of picture is this?", ("portrait", "photograph", "photo")),
    ("Does she wear a hat?", ("yes",)),
    ("How many eyes are visible?", ("two", "2")),
    ("Is she in the army or in the navy?", ("navy",)),
    ("Why can she see well?", ("because she wears glasses", "glasses")),
    ("What bird is on the hat?", ("eagle",)),
    ("Is there a car?", ("no",)),
    ("What color is the wall?", ("blue",)),
    ("What shapes are on the flag?", ("stars", "stars and stripes")),
    ("Does she look at the camera?", ("yes",)),
    ("What color is her hair?", ("white", "gray", "grey")),
    ("Which colors does the flag have?", ("red white and blue",)),
    ("Is she alone?", ("yes",)),
    ("What hangs beside the flag?", ("cord", "rope")),
    ("Is she eating?", ("no",)),
    ("What color is the metal on the hat?", ("gold", "golden")),
)

WORDS = tuple(
    sorted(
        {
            word
            for question, answers in ASKED
            for text in (question, *answers)
            for word in re.findall(r"[a-z]+", text.lower())
        }
    )
)


def open_questions(data: Path | None, count: int) -> list[Question]:
    """The first questions of the file, or every question about every view of the photograph."""
    if data is not None:
        return read_questions(data)[:count]
    views = list(open_views().items())
    made = []
    # The view changes with every question, so that a batch mixes formats as a data set does.
    for turn in range(len(views)):
        for place, (prompt, answers) in enumerate(ASKED):
            name, image = views[(place + turn) % len(views)]
            made.append(Question(f"{name} {place}", prompt, answers, image))
    return made[:count]
