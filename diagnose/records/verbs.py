"""What can be asked, and which verbs leave a record? The table that every room knows.

No code here: a verb is found in `commands/`, and what is read of its record in `render/`, by its
name. Only the one that is asked for is imported.
"""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """One thing that can be asked."""

    name: str
    help: str
    leaves_record: bool = False

    @property
    def module(self) -> str:
        """Its name in every room."""
        return self.name.replace("-", "_")


# In the order in which a job is examined, and so in the order of a joint report: where the time
# goes, which line, what helps, what several ranks lose, how far the tool itself can be believed.
VERBS = (
    Verb("run", "Measure this machine stage by stage and write a report.", True),
    Verb(
        "script",
        "Run your script unchanged; report the cause, the line and the milliseconds a fix would "
        "save.",
        True,
    ),
    Verb("watch", "Let your job run as it is; report what was seen, with upper bounds of gains."),
    Verb("trace", "Explain from a profiler trace why a job is slow. Needs no torch.", True),
    Verb("prove", "Compare two commits, files or settings: is it faster, is it equal?", True),
    Verb("optimize", "Try every optimization: is the result equal, is it faster?", True),
    Verb("batch-size", "Find the largest batch that fits, and the one worth using.", True),
    Verb("link", "Measure the link between ranks (under torchrun).", True),
    Verb("scaling", "Find out where several ranks lose time (under torchrun).", True),
    Verb("scale", "Predict larger clusters from a measured scaling. Needs no torch."),
    Verb("evaluate", "Answer questions with a model and score the answers."),
    Verb(
        "profile-accuracy",
        "Measure a vision model's score and speed for each limit of image tiles.",
    ),
    Verb("accuracy", "Measure how often `script` is right, on scripts whose cause is known.", True),
    Verb("report", "Render reports again from their data. Needs no torch."),
    Verb("check", "Fail if a report differs from what its data render to. Needs no torch."),
)
