"""Is the fix real? Equal results first, then interleaved blocks."""
