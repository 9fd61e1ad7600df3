"""How is a model that sees evaluated? InternVL's architecture on questions about photographs."""
