"""How did a command end? One number for each way, the same for every verb and every rank."""

from __future__ import annotations

FINE = 0
FOUND = 1  # a finding under --fail-on, a report that is not what its data say, a goal missed
USAGE = 2
COULD_NOT_MEASURE = 3
INTERRUPTED = 130  # as a shell reports Ctrl-C
