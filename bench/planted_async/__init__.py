"""Which scripts are slow on a device that works while the host goes on? Planted ones."""
