"""What do the GPUs do meanwhile? The only folder that talks to NVML."""
