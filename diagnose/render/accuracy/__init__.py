"""What does the report on the accuracy of the tool look like?"""
