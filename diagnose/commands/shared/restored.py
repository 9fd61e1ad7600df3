"""What is said of files that were put back after a run?"""

from __future__ import annotations

import contextlib
import os

from diagnose.commands.shared.keep import complain
from diagnose.measure.script.put_back import Restored

LEFT_OVER = "a run that was killed had left its files here: "


def tell_restored(restored: Restored, occasion: str = "") -> None:
    """In one sentence; `occasion` begins it."""
    files = "1 file was" if restored.files == 1 else f"{restored.files} files were"
    parts = [f"{files} put back"] if restored.files else []
    if restored.new is not None:
        parts.append(f"what the run wrote is in {os.path.relpath(restored.new)}")
    if restored.problem:
        parts.append(
            f"not everything could be put back: {restored.problem}; once that is repaired, the "
            "next start here goes on with it"
        )
    with contextlib.suppress(OSError):  # the terminal may be gone
        complain(occasion + "; ".join(parts))
