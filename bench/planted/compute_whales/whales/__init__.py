"""Whales in the sea."""
