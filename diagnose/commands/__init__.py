"""What can be asked? One verb, one file; no torch until something is measured."""
