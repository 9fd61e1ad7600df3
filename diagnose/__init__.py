"""Why is this PyTorch job slow, which part is to blame, and does the fix really help?"""

__version__ = "0.1.0"
