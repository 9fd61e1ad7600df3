"""The telling half: pure functions from records to conclusions, tables and figures. No torch."""
