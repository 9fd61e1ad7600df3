"""What does the report on the link look like?"""
