"""Gestures in clips."""
