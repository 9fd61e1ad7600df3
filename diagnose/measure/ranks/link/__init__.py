"""How long does an all-reduce take?"""
