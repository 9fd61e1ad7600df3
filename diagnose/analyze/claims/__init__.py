"""What became of the published claims?"""
