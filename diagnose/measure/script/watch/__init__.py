"""What does a running script do? Nothing here changes it."""
