"""A package whose module is run by its name."""
