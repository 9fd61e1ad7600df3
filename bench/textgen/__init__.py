"""How is a language model evaluated? Qwen2's architecture on questions with reference answers."""

from bench.textgen.workload import FAMILY, open_questions

open_generator = FAMILY.open_generator

__all__ = ["open_generator", "open_questions"]
