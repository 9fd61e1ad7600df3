"""What became of every published claim?"""
