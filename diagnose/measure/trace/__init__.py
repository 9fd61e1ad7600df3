"""What does a trace file show?"""
