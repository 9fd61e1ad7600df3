"""Spoken digits."""
