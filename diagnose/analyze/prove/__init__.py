"""Is the change faster, does it compute the same, and which line is it?"""
