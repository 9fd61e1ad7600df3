"""Why are several ranks slower than one?"""
