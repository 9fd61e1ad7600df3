"""Why is a job slow, as far as its trace shows?"""
