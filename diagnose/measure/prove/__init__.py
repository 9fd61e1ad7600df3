"""Is a change faster, and does it still compute the same? Two sides, each in its own process."""
