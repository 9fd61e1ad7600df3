"""How good are the answers of a model, and how fast do they come?"""
