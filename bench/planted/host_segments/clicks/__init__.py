"""Prediction of clicks on advertisements."""
