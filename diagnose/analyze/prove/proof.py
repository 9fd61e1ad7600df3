"""What is proven of a change? A record in, a proof out."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.analyze.prove.equality import judge_equality
from diagnose.analyze.prove.lines import explains, find_changes
from diagnose.analyze.prove.speed import judge_speed
from diagnose.analyze.units import number
from diagnose.records.prove import SCHEMA, Equality, LineChange, Proof, ProveRecord, Speed
from diagnose.records.script import PHASES

MOST_LINES = 10


def prove(record: ProveRecord) -> Proof:
    speed, equality = judge_speed(record), judge_equality(record)
    lines = find_changes(record)
    return Proof(
        schema=SCHEMA,
        sentence=_sentence(record, speed, equality, lines),
        before=record.before.title,
        after=record.after.title,
        speed=speed,
        equality=equality,
        lines=tuple(lines[:MOST_LINES]),
        phases=_phases(record),
        memory_bytes=(record.before.memory_bytes, record.after.memory_bytes),
        joules_per_step=(record.before.joules_per_step, record.after.joules_per_step),
        commits=(record.before.commit, record.after.commit),
        notes=(*record.notes, *_why_no_lines(record)),
    )


def _sentence(
    record: ProveRecord, speed: Speed, equality: Equality, lines: Sequence[LineChange]
) -> str:
    if speed.ratio is None or speed.ratio_ci is None:
        said = f"{speed.verdict}: {speed.reason}"
    else:
        how = f"{number(speed.ratio, 4)}x [{', '.join(number(e, 4) for e in speed.ratio_ci)}]"
        said = f"{speed.verdict}: {record.after.title} runs at {how} the speed of "
        said += record.before.title
        if speed.verdict in ("FASTER", "SLOWER") and lines and explains(lines[0], speed):
            said += f", mostly at {lines[0].file}:{lines[0].line}"
    return f"{said}; results: {equality.text}."


def _why_no_lines(record: ProveRecord) -> list[str]:
    why = record.before.lines_reason or record.after.lines_reason
    return [f"which line takes the time is not known: {why}"] if why else []


def _phases(record: ProveRecord) -> dict[str, tuple[float, float]]:
    speed = judge_speed(record)
    shares = [
        {
            name: (step_ms or 0.0) * seconds / sum(facts.phases.values())
            for name, seconds in facts.phases.items()
        }
        for facts, step_ms in ((record.before, speed.before_ms), (record.after, speed.after_ms))
    ]
    return {
        name: (shares[0].get(name, 0.0), shares[1].get(name, 0.0))
        for name in PHASES
        if any(name in side for side in shares)
    }
