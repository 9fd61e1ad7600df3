"""Which batch size is right?"""
