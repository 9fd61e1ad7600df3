"""What do more image crops cost a Molmo2? The family whose processor has max_crops."""

from __future__ import annotations

from bench.data import vocabulary
from bench.generation.job import TINY_LANGUAGE, Family, make_workload
from bench.vqa import molmo
from bench.vqa.models import Eyes, vision_shape
from bench.vqa.questions import WORDS, open_questions
from diagnose.workload import Size

VOCABULARY = vocabulary.COMMON_SIZE + len(WORDS)
EYES = Eyes(molmo.MODEL_TYPE)


# Neighboring crops share twice the margin of their patches.
SIZES = {
    # Molmo2-4B, the smallest that is published, with the batch and the crops of the field report.
    "seed": Size(
        batch_size=32,
        sequence_length=32,
        shape=vision_shape(12, image=378, layers=25, hidden=1152, heads=16, ffn=4304)
        | {"margin": 4, "layers": 36, "hidden": 2560, "heads": 32, "kv_heads": 8, "head_dim": 128}
        | {"ffn": 9728, "vocab": 151936, "tied": 0, "rows": 64, "new_tokens": 16},
    ),
    # Tenths of a second for a batch on two CPU cores.
    "small": Size(
        batch_size=4,
        sequence_length=16,
        shape=vision_shape(4, image=112, layers=2, hidden=64, heads=2, ffn=256)
        | {"margin": 1, "layers": 2, "hidden": 128, "heads": 4, "kv_heads": 2}
        | {"head_dim": 32, "ffn": 344}
        | {"vocab": VOCABULARY, "tied": 0, "rows": 64, "new_tokens": 16},
    ),
    # For tests.
    "tiny": Size(
        batch_size=2,
        sequence_length=16,
        shape=vision_shape(2, image=56, layers=2, hidden=32, heads=2, ffn=64)
        | {**TINY_LANGUAGE, "margin": 1, "head_dim": 16}
        | {"vocab": VOCABULARY, "tied": 0, "rows": 16, "new_tokens": 8},
    ),
}

FAMILY = Family(
    name="molmo",
    description="hand-written questions on four photographs of installed packages in five formats",
    sizes=SIZES,
    build_model=EYES.build_model,
    open_reader=EYES.open_reader,
    open_questions=open_questions,
)

WORKLOAD = make_workload(FAMILY)
