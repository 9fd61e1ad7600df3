"""What follows from a record? Records in, findings out; no torch, no Markdown."""
