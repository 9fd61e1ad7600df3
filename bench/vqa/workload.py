"""What does it cost to ask about pictures? InternVL on photographs of several formats.

With a directory, whatever vision model it holds: molmo_workload.py has a Molmo2 of its own.
"""

from __future__ import annotations

from bench.data import vocabulary
from bench.generation.job import (
    QWEN_HALF_BILLION,
    TINY_LANGUAGE,
    Family,
    make_workload,
)
from bench.vqa import generator
from bench.vqa.models import Eyes, vision_shape
from bench.vqa.questions import WORDS, open_questions
from diagnose.workload import Size

EYES = Eyes(generator.MODEL_TYPE)
VOCABULARY = vocabulary.COMMON_SIZE + len(WORDS)


SIZES = {
    # InternVL3-1B with the batch and the tiles of the report about evaluating MolmoE-1B.
    "seed": Size(
        batch_size=32,
        sequence_length=32,
        shape=vision_shape(max_crops=12, image=448, layers=24, hidden=1024, heads=16, ffn=4096)
        | QWEN_HALF_BILLION
        | {"vocab": 151674, "tied": 0, "rows": 64, "new_tokens": 16},
    ),
    # Tenths of a second for a batch on two CPU cores.
    "small": Size(
        batch_size=4,
        sequence_length=16,
        shape=vision_shape(max_crops=4, image=112, layers=2, hidden=64, heads=2, ffn=256)
        | {"layers": 2, "hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 344}
        | {"vocab": VOCABULARY, "tied": 0, "rows": 64, "new_tokens": 16},
    ),
    # For tests.
    "tiny": Size(
        batch_size=2,
        sequence_length=16,
        shape=vision_shape(max_crops=2, image=56, layers=1, hidden=32, heads=2, ffn=64)
        | TINY_LANGUAGE
        | {"vocab": VOCABULARY, "tied": 0, "rows": 16, "new_tokens": 8},
    ),
}

FAMILY = Family(
    name="vqa",
    description="hand-written questions on four photographs of installed packages in five formats",
    sizes=SIZES,
    build_model=EYES.build_model,
    open_reader=EYES.open_reader,
    open_questions=open_questions,
)

WORKLOAD = make_workload(FAMILY)
