"""Tides at a harbour."""
