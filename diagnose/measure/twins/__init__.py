"""How much faster is the repaired script? Both take turns."""
