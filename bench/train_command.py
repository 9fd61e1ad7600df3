"""How does a training command end? With an exit code, and a sentence for each known failure."""

from __future__ import annotations

from collections.abc import Callable

from diagnose.workload import WorkloadError

FINE, USAGE, COULD_NOT_TRAIN, INTERRUPTED = 0, 2, 3, 130


Complain = Callable[[str, int], int]  # says the sentence, returns the code


class TrainingFailed(Exception):
    """Training could not go on; the message says why and what to do."""


def end_with_code(
    run: Callable[[], int], explain: Callable[[Exception], str | None], complain: Complain
) -> int:
    """What `run` returns, or the code of what stopped it; a fault of ours is raised."""
    try:
        return run()
    except WorkloadError as error:
        return complain(str(error), USAGE)
    except KeyboardInterrupt:
        return complain("interrupted", INTERRUPTED)
    except Exception as error:
        reason = explain(error)
        if reason is None:
            raise
        return complain(reason, COULD_NOT_TRAIN)


def explain_failure(error: Exception, saves_memory: str) -> str | None:
    """Why training could not go on, if it is a known way to fail; None for a fault of ours."""
    import torch

    from diagnose.measure.machine.out_of_memory import is_out_of_memory

    if isinstance(error, TrainingFailed):
        return str(error)
    if is_out_of_memory(error, torch.OutOfMemoryError):
        return f"out of memory; {saves_memory}"
    return None
