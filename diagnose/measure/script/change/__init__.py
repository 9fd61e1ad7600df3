"""What comes back when one cause is removed for a few steps?"""
