"""What the module beside it imports."""

STEPS = 80
