"""Which published claims hold? One table, derived from every record under reports/."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

from diagnose.analyze.claims.table import CLAIMS
from diagnose.analyze.claims.verdict import Result, Verdict, judge_claims
from diagnose.render import store
from diagnose.render.markdown import Markup, escape
from diagnose.render.table import Column, table

DIRECTORY = store.RESERVED_LABEL
_VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
_WORDS = (
    "The field reports behind this suite make these claims; an id names the report and its row. An "
    "interval inside the expected range confirms a claim, one outside refutes it. A claim about "
    "GPUs is never decided on a CPU: its number, if there is one, is listed without a verdict. A "
    "claim about real answers is never decided on built-in questions."
)


def render_claims(records: Sequence[Any]) -> str:
    """Empty where no record says anything about any claim."""
    results = sorted(judge_claims(CLAIMS, records), key=_order)
    if not any(each.found for each in results):
        return ""
    verdicts = [each.verdict for each in results]
    counts = ", ".join(f"{verdicts.count(each)} {each}" for each in _VERDICTS)
    columns: list[Column[Result]] = [
        Column("id", lambda each: each.claim.id),
        Column("claim", lambda each: each.claim.sentence, left=True),
        Column("expected", _expected, left=True),
        Column("measured", _measured, left=True),
        Column("verdict", lambda each: each.verdict, left=True),
        Column("why undecided", lambda each: each.reason, left=True),
        Column("report", _link, left=True),
    ]
    title = "# What became of the published claims?"
    return "\n\n".join([title, f"**{counts}.**", _WORDS, *table(results, columns)]) + "\n"


def _order(result: Result) -> tuple[int, list[int], str]:
    """What is decided first, then as in the reports."""
    numbers = [int(number) for number in result.claim.id.split("-")]
    return _VERDICTS.index(result.verdict), numbers, result.label


def _expected(result: Result) -> str | None:
    """The range in the unit of what was measured."""
    if result.found is None:
        return None
    unit = replace(result.found.unit, shortest=True)
    low, high = result.claim.expected
    if low == high:
        return f"exactly {unit.write(low)}"
    if high == math.inf:
        return f"at least {unit.write(low)}"
    return f"at most {unit.write(high)}" if low == 0 else f"{low:g} to {unit.write(high)}"


def _measured(result: Result) -> str | None:
    if result.found is None:
        return None
    value, unit = result.found.value, result.found.unit
    if value.low == value.high:  # counted
        text = replace(unit, shortest=True).write(float(f"{value.center:.3g}"))
    else:
        text = unit.write(value)
    where = "on this CPU: " if result.verdict == "NOT DECIDED HERE" else ""
    return f"{where}{text}" + (f" ({result.found.remark})" if result.found.remark else "")


def _link(result: Result) -> str:
    # A label that names a directory needs no escaping in an address.
    text = f"[{escape(result.label)}](../{result.label}/report.md)"
    return Markup(text) if result.label else ""
