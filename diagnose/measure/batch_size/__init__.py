"""How large may a batch be? The search, its probes, and what all ranks agree on."""
