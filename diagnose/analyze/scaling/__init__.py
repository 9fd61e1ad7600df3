"""Where is scaling lost, and what gives it back?"""
