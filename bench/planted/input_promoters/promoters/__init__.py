"""Promoter activity from sequence."""
