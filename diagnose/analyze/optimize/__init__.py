"""Which change helps, and what do all of them bring together?"""
