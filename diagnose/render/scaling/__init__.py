"""What does the report on scaling look like?"""
