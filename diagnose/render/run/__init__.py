"""What does the report on a run look like?"""
