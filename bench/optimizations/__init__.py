"""The catalogue: what the field report proposed, each as before, after, and as published."""
