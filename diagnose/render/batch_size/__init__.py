"""What does the report on batch sizes look like?"""
