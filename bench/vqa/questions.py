"""What is asked about a picture? Questions on four photographs, or those of a user's file.

Questions and answers are written by hand, most of one word and a few longer, because lengths
decide how many tokens an evaluation writes. They are no sample of any data set: what share of
them fits into a limit says nothing about real answers; for that give a file of your own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from bench.generation.questions import read_questions
from bench.vqa.views import VIEWS, open_views
from diagnose.workload import Question

Asked = Sequence[tuple[str, tuple[str, ...]]]

# By photograph, in an order in which short and long answers, and so their costs, are spread.
ASKED: Mapping[str, Asked] = {
    "officer": (
        ("Is this a woman?", ("yes",)),
        ("What is on her nose?", ("glasses", "eyeglasses")),
        ("How many people are in the picture?", ("one", "1")),
        ("What is on her head?", ("hat", "cap")),
        ("What is she wearing?", ("navy uniform", "a uniform", "uniform")),
        ("What is behind her on the left?", ("flag", "american flag")),
        (
            "Describe the picture.",
            (
                "the portrait of an old woman who is an officer of the navy "
                "with a hat and glasses in front of a flag",
            ),
        ),
        ("Is there a dog?", ("no",)),
        ("Which country does the flag belong to?", ("united states", "usa", "america")),
        ("Is she young?", ("no",)),
        ("Why can she see well?", ("because she wears glasses", "glasses")),
        ("What bird is on the hat?", ("eagle",)),
        ("Which colors does the flag have?", ("red white and blue",)),
        ("What color is the wall?", ("blue",)),
    ),
    "stairs": (
        ("What do the people walk on?", ("stairs", "a staircase", "steps")),
        ("Is the picture in color?", ("no",)),
        ("What does the man on the right carry?", ("backpack", "a backpack")),
        ("Is the man on the right bald?", ("no",)),
        ("What are the stairs made of?", ("metal", "steel")),
        (
            "What is happening here?",
            ("three people climb the open stairs of a tower on a clear day",),
        ),
        ("Was it taken from above or from below?", ("below",)),
        ("Is it raining?", ("no",)),
        ("What grows below the stairs?", ("trees", "a tree")),
        ("What keeps people from falling?", ("a railing", "the railing", "railing")),
        ("Is there a car?", ("no",)),
        ("Where is the backpack?", ("on the back of the man on the right",)),
    ),
    "photographer": (
        ("What is the man doing?", ("filming", "taking a picture")),
        ("Is he outdoors?", ("yes",)),
        ("What does he look through?", ("camera", "a camera")),
        ("What is on his hands?", ("gloves", "black gloves")),
        ("What color is his coat?", ("black",)),
        ("What does the camera stand on?", ("tripod", "a tripod")),
        (
            "Describe the picture.",
            (
                "a man in a dark coat bends down to look through a camera on a tripod "
                "in a field with buildings far behind him",
            ),
        ),
        ("Does he wear a hat?", ("no",)),
        ("What is far behind him?", ("buildings", "a city")),
        ("Is it warm?", ("no",)),
        ("What covers the ground?", ("grass",)),
        ("How many men are in the picture?", ("one", "1")),
    ),
    "fields": (
        ("From where was it taken?", ("from an airplane", "from above", "the air")),
        ("Is there a sea?", ("no",)),
        ("What are the dark spots?", ("trees", "forest")),
        ("What crosses the bottom of the picture?", ("a road", "road", "roads")),
        ("Is it a city?", ("no",)),
        ("What surrounds the trees?", ("fields", "a field")),
        ("Are there people to be seen?", ("no",)),
        (
            "What does the picture show?",
            ("fields and a narrow wood along a valley seen from high above",),
        ),
        ("Is it an aerial photograph?", ("yes",)),
        ("What shape has the wood?", ("a star", "star", "branches")),
        ("Is the road straight?", ("no",)),
        ("Is it night?", ("no",)),
    ),
}

WORDS = tuple(
    sorted(
        {
            word
            for asked in ASKED.values()
            for question, answers in asked
            for text in (question, *answers)
            for word in re.findall(r"[a-z]+", text.lower())
        }
    )
)


def open_questions(data: Path | None, count: int) -> list[Question]:
    """The first questions of the file, or every question about every view of its photograph."""
    if data is not None:
        return read_questions(data)[:count]
    by_view = [
        [
            Question(f"{name} {place}", prompt, answers, image)
            for place, (prompt, answers) in enumerate(ASKED[VIEWS[name].photograph])
        ]
        for name, image in open_views().items()
    ]
    # The view changes with every question, so that a batch mixes formats as a data set does.
    made = [each for turn in zip_longest(*by_view) for each in turn if each is not None]
    return made[:count]
