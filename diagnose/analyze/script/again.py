"""What do several runs of one script say together? Their windows and steps count as of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from diagnose.records.script import Change, Occasion, ScriptRecord


def join_runs(records: Sequence[ScriptRecord]) -> ScriptRecord:
    """What was seen of lines is that of the run that saw most."""
    longest = max(records, key=lambda each: (each.sampled_steps, each.steps))
    complete = [each for each in records if not each.missing]
    if len(complete) < 2:
        return longest
    windows, first = [], 0
    changes: dict[str, Change] = {}
    for each in complete:
        windows += [replace(window, block=window.block + first) for window in each.windows]
        first = 1 + max((window.block for window in windows), default=-1)
        for change in each.changes:
            if change.variant not in changes or change.failed:
                changes[change.variant] = change
    notes = dict.fromkeys(note for each in complete for note in each.notes)
    return replace(
        longest,
        steps=sum(each.steps for each in complete),
        step_seconds=tuple(seconds for each in complete for seconds in each.step_seconds),
        run_seconds=sum(each.run_seconds for each in complete),
        windows=tuple(windows),
        changes=tuple(changes.values()),
        occasions=tuple(_join_occasions([o for each in complete for o in each.occasions])),
        notes=(f"{len(complete)} runs are told as one", *notes),
    )


def _join_occasions(occasions: Sequence[Occasion]) -> list[Occasion]:
    found: dict[tuple[str, str], Occasion] = {}
    for each in occasions:
        key = each.phase, each.function
        earlier = found.get(key)
        if earlier is not None:
            each = replace(
                each,
                steps=earlier.steps + each.steps,
                ran=earlier.ran + each.ran,
                left_out=earlier.left_out + each.left_out,
            )
        found[key] = each
    return list(found.values())
