"""Birds, told apart by photographs."""
