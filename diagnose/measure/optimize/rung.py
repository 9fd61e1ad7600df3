"""What do the changes bring together? One rung: the base against the base with so many of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diagnose.measure.optimize.experiment import Bench, time_scope
from diagnose.records.experiments import Comparison
from diagnose.workload import Fact, Ladder, Side


def measure_rung(ladder: Ladder, keys: Sequence[str], bench: Bench) -> Comparison:
    """Interleaved blocks of {base, base again, base with all these changes}."""
    settings = dict(ladder.base)
    for key in keys:
        settings.update(ladder.patches[key])
    before = _side(ladder, "as it was", ladder.base)
    after = _side(ladder, f"with {', '.join(keys)}", settings)
    blank = Comparison(
        key=keys[-1],
        title=" + ".join(keys),
        form="after",
        scope=ladder.scope,
        before_text=before.text,
        after_text=after.text,
        status="done",
        facts={"added": keys[-1]},
    )
    return time_scope(before, after, ladder.scope, bench, blank)


def _side(ladder: Ladder, text: str, settings: Mapping[str, Fact]) -> Side:
    # The results were compared before, change by change.
    return Side(text, lambda lab: {}, {ladder.scope: ladder.open(settings)})
