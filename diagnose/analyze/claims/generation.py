"""What became of the claims about evaluation? Three guides, held against one timer."""

from __future__ import annotations

from diagnose.analyze.claims import generation_arithmetic as arithmetic
from diagnose.analyze.claims import generation_judges as judges
from diagnose.analyze.claims.judges import Claim, ClaimResult, Judge, computes_the_same, needs
from diagnose.analyze.claims.series import gains
from diagnose.analyze.optimize.plans import PASS

BATCH_REPORT = "the report of `batch-size` answers it, with every probe"
NOTHING_TO_COMPARE = "every probe generates too: no forward pass alone is there to compare it with"
DEFAULT_PREFETCH = "2 is the default where there are loader processes"
LOADER: arithmetic.Range = (1.1, 1.2)


def _always(result: ClaimResult) -> Judge:
    return lambda evidence: result


# In the order of the guides. Arithmetic on their printed figures stands before the measurement.
ACCURACY_GUIDE: tuple[Claim, ...] = (
    Claim("000-02", "the device is not fully used", judges.judge_base_utilization),
    Claim("000-03", "50 of 80 GB are 62.5 % (arithmetic)", _always(arithmetic.memory_share())),
    Claim(
        "000-05",
        "6699 batches of 1.80 s take 3.3 h (arithmetic)",
        _always(arithmetic.total_time()),
    ),
    Claim("000-07", "a batch twice as large is faster", judges.faster("batch_double")),
    Claim(
        "000-08",
        "a batch of 64 takes about 100 GB (arithmetic)",
        _always(arithmetic.doubled_memory(100)),
    ),
    Claim("000-08", "twice the batch takes twice the memory", judges.judge_doubled_memory),
    Claim("000-09", "a batch half as large again is faster", judges.faster("batch_half_more")),
    Claim(
        "000-10",
        "num_workers=0 lets the device wait: loader processes are faster",
        judges.faster("workers_4"),
    ),
    Claim("000-11", "pin_memory=True moves data faster", judges.faster("pin_memory")),
    Claim("000-14", "prefetch_factor=2 is faster", judges.faster("prefetch_2", DEFAULT_PREFETCH)),
    Claim(
        "000-15", "the loader's settings gain 10 to 20 %", gains("workers_4", *LOADER, scope=PASS)
    ),
    Claim("000-17", "answers usually have 1 to 10 tokens", judges.judge_short_answers),
    Claim("000-18", "16 tokens cover more than 99 % of the answers", judges.covers(16, 0.99)),
    Claim("000-19", "8 tokens cover more than 95 % of the answers", judges.covers(8, 0.95)),
    Claim("000-21", "16 instead of 32 tokens is about 2x", judges.shorter_limit(16, 2.0)),
    Claim("000-22", "8 instead of 32 tokens is about 4x", judges.shorter_limit(8, 4.0)),
    Claim("000-24", "non_blocking copies wait less", judges.faster("non_blocking")),
    Claim("000-26", "processes scale linearly: n of them gain n times", judges.judge_linear),
    Claim(
        "000-28",
        "3.3 h on 8 cards are about 25 min (arithmetic)",
        _always(arithmetic.eight_cards()),
    ),
    Claim("000-30", "GenerationConfig outside the loop is faster", judges.faster("config_once")),
    Claim("000-31", "logging the first batch only is faster", judges.faster("log_once")),
    Claim("000-32", "scoring in batches is faster", judges.faster("score_at_once")),
    Claim(
        "000-34",
        "plan A: 2 to 3x is 1 to 1.5 h (arithmetic)",
        _always(arithmetic.plan_times((2, 3), (60, 90))),
    ),
    Claim(
        "000-34",
        "plan A: its parts multiply to 2 to 3x (arithmetic)",
        _always(arithmetic.plan_product(((2, 2), LOADER), (2, 3))),
    ),
    Claim("000-34", "plan A gains 2 to 3x", judges.plan_gains("plan_a", 2.0, 3.0)),
    Claim(
        "000-36",
        "plan B: 4 to 5x is 40 to 50 min (arithmetic)",
        _always(arithmetic.plan_times((4, 5), (40, 50))),
    ),
    Claim(
        "000-36",
        "plan B: its parts multiply to 4 to 5x (arithmetic)",
        _always(arithmetic.plan_product(((4, 4), LOADER), (4, 5))),
    ),
    Claim("000-36", "plan B gains 4 to 5x", judges.plan_gains("plan_b", 4.0, 5.0)),
    Claim(
        "000-38",
        "plan C: 16x is 12 to 15 min (arithmetic)",
        _always(arithmetic.plan_times((16, 16), (12, 15))),
    ),
    Claim(
        "000-38",
        "plan C: its parts multiply to 16x (arithmetic)",
        _always(arithmetic.plan_product(((8, 8), (2, 2), LOADER), (16, 16))),
    ),
    Claim("000-38", "plan C gains 16x on 8 cards", judges.judge_plan_c),
    Claim(
        "000-40",
        "first fewer tokens, then the loader, then the batch",
        judges.judge_priority,
    ),
    Claim("000-40", "several devices are the most effective", judges.judge_most_effective),
)
CROPS_GUIDE: tuple[Claim, ...] = (
    Claim(
        "002-13",
        "to begin with many crops allows the larger batch first (arithmetic)",
        _always(arithmetic.larger_first(12, 4)),
    ),
    Claim("002-26", "a forward pass without generation tells what fits", needs(NOTHING_TO_COMPARE)),
    Claim(
        "002-29",
        "probing takes 10 to 30 s per max_crops (arithmetic)",
        _always(arithmetic.probing_time()),
    ),
    Claim("002-30", "no run ends out of memory", needs(BATCH_REPORT)),
    Claim("002-31", "each max_crops gets its largest batch", needs(BATCH_REPORT)),
    Claim(
        "002-33",
        "12 crops: a batch of 32 to 48 (arithmetic)",
        _always(arithmetic.estimate(12, (32, 48))),
    ),
    Claim(
        "002-34",
        "13 crops: a batch of 24 to 32 (arithmetic)",
        _always(arithmetic.estimate(13, (24, 32))),
    ),
    Claim(
        "002-35",
        "2 to 4 crops: a batch of 64 (arithmetic)",
        _always(arithmetic.estimate(4, (64, 64))),
    ),
    Claim(
        "002-36",
        "5 to 8 crops: a batch of 48 (arithmetic)",
        _always(arithmetic.estimate(8, (48, 48))),
    ),
    Claim(
        "002-37",
        "9 to 12 crops: a batch of 32 (arithmetic)",
        _always(arithmetic.estimate(12, (32, 32))),
    ),
    Claim("002-49", "generation may need more memory than the probe", needs(NOTHING_TO_COMPARE)),
)
BATCH_GUIDE: tuple[Claim, ...] = (
    Claim("004-01", "batches answer faster than single samples", judges.faster("batch_4")),
    Claim(
        "004-01",
        "batches answer like single samples, as published",
        computes_the_same("batch_4", "on prompts of one length"),
    ),
    Claim("004-02", "batches use the device's memory better", needs(BATCH_REPORT)),
    Claim("004-09", "a batch size by the device's memory", needs(BATCH_REPORT)),
    Claim("004-14", "a batch size by the number of parameters", needs(BATCH_REPORT)),
    Claim("004-40", "half precision is faster", judges.faster("bfloat16", "bfloat16 here")),
    Claim(
        "004-47",
        "120 → 70 s is 1.7x (arithmetic)",
        _always(arithmetic.batch_gain(70, 1.7)),
    ),
    Claim("004-47", "batches of 2 gain 1.7x", judges.about("batch_2", 1.7)),
    Claim(
        "004-48",
        "120 → 45 s is 2.7x (arithmetic)",
        _always(arithmetic.batch_gain(45, 2.7)),
    ),
    Claim("004-48", "batches of 4 gain 2.7x", judges.about("batch_4", 2.7)),
    Claim(
        "004-49",
        "120 → 35 s is 3.4x (arithmetic)",
        _always(arithmetic.batch_gain(35, 3.4)),
    ),
    Claim("004-49", "batches of 8 gain 3.4x", judges.about("batch_8", 3.4)),
    Claim(
        "004-49", "utilisation rises from 30 to 85 % with the batch", judges.judge_batch_utilization
    ),
    Claim("004-53", "the largest batch that fits is the one to use", judges.judge_largest_batch),
)
GENERATION_CLAIMS = (*ACCURACY_GUIDE, *CROPS_GUIDE, *BATCH_GUIDE)
