"""Stars from the text of a product review."""
