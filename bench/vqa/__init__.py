"""How is a model that sees evaluated? InternVL's architecture on questions about photographs."""

from bench.vqa.questions import open_questions
from bench.vqa.workload import FAMILY

open_generator = FAMILY.open_generator

__all__ = ["open_generator", "open_questions"]
