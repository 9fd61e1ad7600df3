"""Scripts with a known cause of slowness, as people write them, each with its repaired twin."""
