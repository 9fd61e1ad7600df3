"""How fast is the link between the ranks, and is it to blame?"""
