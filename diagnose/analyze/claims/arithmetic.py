"""Do the printed figures of the first report agree with each other? Arithmetic, no measurement."""

from __future__ import annotations

from diagnose.analyze.claims.judges import FLOAT_BYTES, VOCABULARY, ClaimResult, Judge
from diagnose.analyze.units import number, percent, scaled

BATCH, LENGTH = 128, 128
FULL_MODEL_MS = 579.4
SPEED_BEFORE, SPEED_AFTER = 2.2, 4.9  # iterations per second, one card
SPEED_TWO_CARDS = 1.4
WATTS_BEFORE, WATTS_AFTER, WATTS_LIMIT = 200, 320, 450
# float32 gradients of 128.87 million parameters.
GRADIENT_BYTES = 515e6
MEBIBYTE, GIBIBYTE = 2**20, 2**30
# size in MiB, milliseconds, printed GB/s
ALL_REDUCES = ((4, 9, 0.92), (40, 83, 1.01), (200, 390, 1.07))


def agree(text: str, low: float, high: float, printed: float) -> ClaimResult:
    """Whether a printed figure is possible, given the rounding of those it follows from."""
    return ClaimResult("CONFIRMED" if low <= printed <= high else "REFUTED", text)


def throughput(milliseconds: float, printed: float) -> Judge:
    """Samples per second follow from the latency, which is printed to 0.1 ms."""
    low, high = (1e3 * BATCH / (milliseconds + error) for error in (0.05, -0.05))
    half = 0.5 if printed >= 1000 else 0.05
    text = (
        f"{BATCH} / {milliseconds / 1e3:.4f} s = {1e3 * BATCH / milliseconds:.1f}, "
        f"printed {printed:g}"
    )
    result = agree(text, low - half, high + half, printed)
    return lambda evidence: result


def speed_gain() -> ClaimResult:
    low, high = ((SPEED_AFTER + sign * 0.05) / (SPEED_BEFORE - sign * 0.05) for sign in (-1, 1))
    text = f"{SPEED_AFTER} / {SPEED_BEFORE} = {SPEED_AFTER / SPEED_BEFORE:.2f}, printed 2.2"
    return agree(text, low, high, 2.2)


def speed_before() -> ClaimResult:
    low, high = (1e3 / (SPEED_BEFORE + error) for error in (0.05, -0.05))
    result = agree(
        f"{SPEED_BEFORE} it/s = {1e3 / SPEED_BEFORE:.0f} ms, but test 6 took {FULL_MODEL_MS} ms; "
        f"against that the gain would be {SPEED_AFTER * FULL_MODEL_MS / 1e3:.1f}x",
        low,
        high,
        FULL_MODEL_MS,
    )
    return ClaimResult(result.verdict, result.measured, "the two were not measured alike")


def power_gain() -> ClaimResult:
    gain = WATTS_AFTER / WATTS_BEFORE - 1
    return agree(f"{WATTS_AFTER} / {WATTS_BEFORE} = +{percent(gain)}", 0.595, 0.605, gain)


def utilization_estimate() -> ClaimResult:
    first, second = WATTS_BEFORE / WATTS_LIMIT, WATTS_AFTER / WATTS_LIMIT
    text = (
        f"{WATTS_BEFORE} and {WATTS_AFTER} W of {WATTS_LIMIT} W are {percent(first)} and "
        f"{percent(second)}: {100 * (second - first):.0f} points, or +{percent(second / first - 1)}"
    )
    condition = (
        "on reading +27 % as percentage points, and utilisation as power over the limit, "
        "which is not what nvidia-smi calls utilisation"
    )
    return ClaimResult("CONDITIONAL", text, condition)


def loop_count() -> ClaimResult:
    return agree(f"{BATCH} × 2 × 3 = {BATCH * 6}, printed 768", BATCH * 6, BATCH * 6, 768)


def vocabulary_tensor() -> ClaimResult:
    nbytes = BATCH * LENGTH * VOCABULARY * FLOAT_BYTES
    text = (
        f"{BATCH} × {LENGTH} × {VOCABULARY} × {FLOAT_BYTES} B = {scaled(nbytes, 'B')} = "
        f"{nbytes / GIBIBYTE:.2f} GiB, printed 1.3 GB"
    )
    return ClaimResult("CONFIRMED", text, "GB stands for GiB")


def loading_share() -> ClaimResult:
    loading, synthetic, real = 12.4, 162.9, 186.4
    text = (
        f"{loading} of {FULL_MODEL_MS} ms is {percent(loading / FULL_MODEL_MS)}; but real data "
        f"cost {real} - {synthetic} = {real - synthetic:.1f} ms, "
        f"{percent((real - synthetic) / real)} of that step"
    )
    condition = "on the full model: of the BERT step alone, real data took more than the loader"
    return ClaimResult("CONDITIONAL", text, condition)


def bandwidth() -> ClaimResult:
    parts = [
        f"{size} MB / {ms} ms = {size * MEBIBYTE / ms / 1e6:.2f} GB/s, printed {printed:g}"
        for size, ms, printed in ALL_REDUCES
    ]
    return ClaimResult("CONDITIONAL", "; ".join(parts), "on counting every byte twice")


def two_cards() -> ClaimResult:
    gain = 2 * SPEED_TWO_CARDS / SPEED_AFTER
    text = (
        f"2 × {SPEED_TWO_CARDS} / {SPEED_AFTER} = {gain:.2f}x of one card, "
        f"an efficiency of {percent(gain / 2)}"
    )
    return ClaimResult("CONFIRMED", text)


def communication() -> ClaimResult:
    slowest = ALL_REDUCES[-1]
    rate = slowest[0] * MEBIBYTE / slowest[1] * 1e3
    text = (
        f"{scaled(GRADIENT_BYTES, 'B')} at {rate / 1e9:.2f} GB/s take "
        f"{number(GRADIENT_BYTES / rate, 2)} s, the step on two cards "
        f"{number(1 / SPEED_TWO_CARDS, 2)} s"
    )
    return ClaimResult("CONDITIONAL", text, "on two GPUs to measure it: the order of size fits")
