"""How is a language model evaluated? Qwen2's architecture on questions with reference answers."""
