"""What does the report on optimizations look like?"""
