"""Does a training command end with the right code, and does it leave our own faults alone?"""

from __future__ import annotations

import pytest

from bench.train_command import TrainingFailed, end_with_code, explain_failure
from diagnose.workload import WorkloadError


def explain(error: Exception) -> str | None:
    return explain_failure(error, "use less")


def end(error: BaseException | None) -> tuple[int, list[str]]:
    said = []

    def run() -> int:
        if error is not None:
            raise error
        return 0

    def complain(sentence: str, code: int) -> int:
        said.append(sentence)
        return code

    return end_with_code(run, explain, complain), said


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, 0, []),
        (WorkloadError("no such file"), 2, ["no such file"]),
        (TrainingFailed("the loss is not finite"), 3, ["the loss is not finite"]),
        (MemoryError(), 3, ["out of memory; use less"]),
        (KeyboardInterrupt(), 130, ["interrupted"]),
    ],
)
def test_every_known_end_has_its_code_and_sentence(
    error: BaseException | None, code: int, said: list[str]
) -> None:
    assert end(error) == (code, said)


def test_a_fault_of_ours_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        end(ZeroDivisionError())
