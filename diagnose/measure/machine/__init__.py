"""Where is it measured? The machine, its device and its memory."""
