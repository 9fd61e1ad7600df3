"""How do several ranks measure together? A supervisor and a member process for every rank."""
