"""The measuring half: torch, NVML and processes. It writes records and never reads reports."""
