"""What became of every published claim? The ledger: claimed, measured here, verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diagnose.analyze.claims import arithmetic, judges, launches
from diagnose.analyze.claims.generation import GENERATION_CLAIMS
from diagnose.analyze.claims.judges import Claim, ClaimResult, Evidence, Judge
from diagnose.analyze.claims.series import SERIES_CLAIMS
from diagnose.analyze.optimize.experiment import Outcome
from diagnose.records.experiments import OptimizeRecord
from diagnose.render.markdown import Align, table

__all__ = ["CLAIMS", "RESULTS", "Claim", "judge_claims", "ledger"]

TWO_GPUS = "it needs two GPUs"
RESULTS = ("CONFIRMED", "CONDITIONAL", "REFUTED", "NOT TESTABLE HERE")


def _always(result: ClaimResult) -> Judge:
    return lambda evidence: result


# In the order of the first report, so that it can be read beside it. Arithmetic on its printed
# figures stands before the measurement of the same claim.
CLAIMS: tuple[Claim, ...] = (
    Claim(
        "003-05",
        "all-reduce bandwidths 0.92, 1.01 and 1.07 GB/s (arithmetic)",
        _always(arithmetic.bandwidth()),
    ),
    Claim(
        "003-09",
        "NCCL reaches 1 GB/s under WSL2 without shared memory, 20 GB/s is normal",
        judges.needs(TWO_GPUS),
    ),
    Claim("003-14", "inference: 1147 samples/s (arithmetic)", arithmetic.throughput(111.6, 1147)),
    Claim("003-15", "training: 381.7 samples/s (arithmetic)", arithmetic.throughput(335.3, 381.7)),
    Claim("003-16", "FP16: 785.5 samples/s (arithmetic)", arithmetic.throughput(162.9, 785.5)),
    Claim(
        "003-16",
        "low precision makes a training step faster",
        judges.speeds_up("mixed_precision", "training step"),
    ),
    Claim("003-18", "real data: 686.7 samples/s (arithmetic)", arithmetic.throughput(186.4, 686.7)),
    Claim(
        "003-19", "full model: 220.9 samples/s (arithmetic)", arithmetic.throughput(579.4, 220.9)
    ),
    Claim(
        "003-24",
        "data loading is excluded, 12.4 ms per batch (arithmetic)",
        _always(arithmetic.loading_share()),
    ),
    Claim("003-24", "data loading is excluded", judges.judge_loading),
    Claim(
        "003-25",
        "mmap I/O is excluded: preloading changes nothing",
        judges.changes_nothing("dataset_preload"),
    ),
    Claim(
        "003-26",
        "contention of workers is excluded: their number changes nothing",
        judges.changes_nothing("loader_workers"),
    ),
    Claim("003-28", "the double loop is the core bottleneck", judges.judge_core_bottleneck),
    Claim(
        "003-29", "128 × 6 = 768 passes per forward (arithmetic)", _always(arithmetic.loop_count())
    ),
    Claim("003-29", "the loop runs 2 × prompt length × batch times", launches.judge_loop_count),
    Claim("003-30", "each pass is one kernel launch", launches.judge_launch_per_pass),
    Claim(
        "003-31",
        "the loop costs by its passes and launches, in the forward pass",
        judges.judge_where_the_loop_costs,
    ),
    Claim(
        "003-33",
        "index_copy_ at the places of sample 0 replaces the loop",
        judges.computes_the_same("apply_prompt", "on sentences of one length"),
    ),
    Claim(
        "003-34",
        "dynamic_mask_token on the device is faster",
        judges.speeds_up("dynamic_mask"),
    ),
    Claim(
        "003-34",
        "the published comparison of ids replaces the tokenizer",
        judges.computes_the_same("dynamic_mask", "on data without [UNK]"),
    ),
    Claim(
        "003-35", "scatter_add_ is faster than a tensor of zeros", judges.speeds_up("gated_fusion")
    ),
    Claim(
        "003-35",
        "scatter_add_ replaces zeros and scatter_",
        judges.computes_the_same("gated_fusion", "on candidates without duplicates"),
    ),
    Claim("003-36", "it saves about 1.3 GB (arithmetic)", _always(arithmetic.vocabulary_tensor())),
    Claim("003-36", "it saves one tensor of vocabulary size", judges.judge_saved_bytes),
    Claim("003-38", "rows without clone() load faster", judges.speeds_up("dataset_clone")),
    Claim("003-40", "preloading loads faster", judges.speeds_up("dataset_preload")),
    Claim("003-41", "prefetch_factor loads faster", judges.speeds_up("loader_prefetch")),
    Claim("003-42", "drop_last makes an epoch faster", judges.speeds_up("loader_drop_last")),
    Claim("003-44", "2.2 it/s before (arithmetic)", _always(arithmetic.speed_before())),
    Claim("003-44", "2.2 → 4.9 it/s is 2.2x (arithmetic)", _always(arithmetic.speed_gain())),
    Claim("003-44", "all changes together gain 2.2x", judges.judge_all_together),
    Claim("003-46", "200 W → 320 W is +60 % (arithmetic)", _always(arithmetic.power_gain())),
    Claim("003-46", "power rises by 60 %", judges.judge_power),
    Claim(
        "003-47",
        "utilisation 44 % → 71 %, +27 % (arithmetic)",
        _always(arithmetic.utilization_estimate()),
    ),
    Claim("003-47", "the utilisation estimate rises by 27 points", judges.judge_utilization),
    Claim(
        "003-49",
        "two cards at 1.4 it/s are slower than one at 4.9 (arithmetic)",
        _always(arithmetic.two_cards()),
    ),
    Claim(
        "003-51",
        "the bandwidth is the cause of slow two-card training (arithmetic)",
        _always(arithmetic.communication()),
    ),
    Claim("003-57", "accumulation over 4 steps communicates 4 times less", judges.needs(TWO_GPUS)),
    Claim("003-82", "a bucket of 200 MB needs fewer all-reduces", judges.needs(TWO_GPUS)),
    Claim(
        "003-84",
        "fewer evaluations block less",
        judges.needs("no experiment here varies how often a run is evaluated"),
    ),
    Claim("003-85", "two workers per card avoid contention", judges.needs(TWO_GPUS)),
    Claim("003-92", "detector and candidate head take visible time", launches.judge_heads),
    Claim("003-93", "some operators stay in FP32", judges.judge_precision_fallback),
    Claim(
        "003-94",
        "memory bandwidth limits the step",
        judges.needs("experiments measure no memory ceiling; the report of `run` has one"),
    ),
    Claim("003-97", "gradient buckets take the memory of two-card runs", judges.needs(TWO_GPUS)),
    Claim("003-98", "gradient_as_bucket_view saves memory", judges.needs(TWO_GPUS)),
    Claim("003-101", "torch.compile makes a step faster", judges.judge_compile),
    Claim("003-102", "FSDP suits a slow link better than DDP", judges.needs(TWO_GPUS)),
)
# By the workload that the report was about; nothing was published about a user's own.
_PUBLISHED: Mapping[str, tuple[Claim, ...]] = {
    "dgca": CLAIMS,
    "timeseries": SERIES_CLAIMS,
    "textgen": GENERATION_CLAIMS,
    "vqa": GENERATION_CLAIMS,
}


def judge_claims(
    record: OptimizeRecord, outcomes: Sequence[Outcome]
) -> list[tuple[Claim, ClaimResult]]:
    evidence = Evidence(record, tuple(outcomes))
    claims = _PUBLISHED.get(record.workload.name, ())
    return [(claim, claim.judge(evidence)) for claim in claims]


def ledger(results: Sequence[tuple[Claim, ClaimResult]]) -> list[str]:
    if not results:
        return ["Nothing was published about this workload."]
    rows = [
        [claim.id, claim.says, result.verdict, result.measured or "–", result.condition]
        for claim, result in results
    ]
    counts = [
        f"{sum(result.verdict == verdict for _, result in results)} {verdict}"
        for verdict in RESULTS
    ]
    align: tuple[Align, ...] = ("left",) * 5
    headers = ["id", "claimed", "verdict", "measured here", "condition or reason"]
    return [f"{', '.join(counts)}.", table(headers, rows, align)]
