"""What did torch.compile do while the script ran? How long it took, what it did again, and why."""

from __future__ import annotations

import re
import sys
from typing import Any

MOST_REASONS = 3


def describe_compiler() -> list[str]:
    """Nothing, if nothing was compiled; the compiler is not loaded for that."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    done = utils.get_compilation_metrics() if utils is not None else []
    if not done:
        return []
    seconds = sum(each.entire_frame_compile_time_s or 0.0 for each in done)
    told = f"torch.compile took {seconds:.2g} s for {len(done)} compilations"
    again = [_reason(each.recompile_reason) for each in done if each.recompile_reason]
    if not again:
        return [told]
    reasons = list(dict.fromkeys(again))
    more = f"; and {len(reasons) - MOST_REASONS} more" if len(reasons) > MOST_REASONS else ""
    return [
        f"{told}, {len(again)} of them once more for the same function because something had "
        f"changed: {'; '.join(reasons[:MOST_REASONS])}{more}"
    ]


def _reason(text: str) -> str:
    """`0/0: guard  # code  # file:line in function`, and a stack below it."""
    guard, *where = re.split(r"\s+# ", text.splitlines()[0])
    guard = guard.partition(": ")[2] or guard
    return f"{guard.strip()} ({where[-1].strip()})" if where else guard.strip()
