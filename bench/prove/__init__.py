"""How far can `diagnose prove` be believed? Simulated machines, and pairs whose truth is known."""
