"""What is wrong in each planted script, and where? The answers; the scripts are the questions.

Every case is a directory with `slow.py`, and with `fixed.patch` where there is something to
repair; of a healthy case it is what the obvious guess would do. A comment in the script marks the
line to change (`# culprit: <cause>`), and a second one the line where its time passes, if that is
elsewhere (`# cost: <cause>`); a tool that names either is right. Each script prints one line per
step on standard output, in which the first number with a decimal point is its loss or score, and
runs as many as `--steps` or, in the later ones, the variable STEPS says.
"""

from __future__ import annotations

from dataclasses import replace

from diagnose.measure.twins.cases import ROUNDING, SLOW, Case, Culprit


def _one(
    name: str,
    cause: str,
    file: str = SLOW,
    tolerance: float | None = 0.0,
    unseen: bool = False,
) -> Case:
    return Case(name, (Culprit(cause, file),), tolerance, unseen=unseen)


# In the order of the causes, then those with two, then the healthy ones.
FIRST: tuple[Case, ...] = (
    _one("input_parsing", "input"),
    _one("input_collate", "input"),
    _one("input_generator", "input"),
    # Another generator draws the noise.
    _one("input_two_loaders", "input", tolerance=None),
    _one("input_detrend", "input", "heartbeat/transforms.py"),
    _one("input_negatives", "input"),
    _one("input_tickets", "input", unseen=True),
    _one("transfer_columns", "transfer"),
    _one("transfer_layout", "transfer"),
    _one("transfer_scans", "transfer", unseen=True),
    _one("host_metrics", "host", "metrics.py"),
    _one("host_dashboard", "host"),
    _one("host_checkpoint", "host", "trainer.py"),
    _one("host_histograms", "host"),
    _one("host_segments", "host", "clicks/monitor.py", unseen=True),
    _one("launch_prompts", "launch", tolerance=ROUNDING),
    _one("launch_averages", "launch", tolerance=ROUNDING),
    _one("launch_generation", "launch", tolerance=ROUNDING),
    _one("launch_neighbours", "launch", tolerance=ROUNDING),
    _one("launch_advantages", "launch", tolerance=ROUNDING, unseen=True),
    _one("sync_token_losses", "sync", tolerance=ROUNDING),
    _one("sync_confusion", "sync"),
    _one("sync_triplets", "sync", tolerance=ROUNDING),
    _one("allocation_scores", "allocation", tolerance=ROUNDING),
    _one("allocation_codebook", "allocation", unseen=True),
    # Another precision is another result.
    _one("precision_autocast", "precision", tolerance=None),
    _one("precision_double", "precision", tolerance=None),
    _one("optimizer_adam", "optimizer", tolerance=ROUNDING),
    _one("optimizer_many_tensors", "optimizer", tolerance=ROUNDING),
    _one("optimizer_paper", "optimizer", tolerance=ROUNDING),
    _one("evaluation_often", "evaluation"),
    _one("evaluation_tagger", "evaluation", unseen=True),
    # Other rows are in a batch.
    Case("batch_small", (Culprit("batch"),), tolerance=None, fixed_work=4),
    Case("batch_households", (Culprit("batch"),), tolerance=None, fixed_work=8, unseen=True),
    _one("recompute_prompts", "recompute", tolerance=ROUNDING),
    _one("recompute_graph", "recompute", "graph.py", tolerance=ROUNDING),
    _one("recompute_gallery", "recompute"),
    _one("recompute_stations", "recompute", unseen=True),
    _one("growth_history", "growth", tolerance=ROUNDING),
    # The same only until the queue is full.
    _one("growth_queue", "growth", tolerance=None),
    _one("growth_hooks", "growth"),
    Case("communication_accumulation", (Culprit("communication"),), tolerance=ROUNDING, ranks=2),
    Case("straggler_first_rank", (Culprit("straggler"),), ranks=2),
    Case("input_and_launch", (Culprit("input"), Culprit("launch")), tolerance=ROUNDING),
    Case("host_and_evaluation", (Culprit("host"), Culprit("evaluation"))),
    Case("compute_plain", ()),
    Case("compute_no_workers", (), settle_steps=6),
    Case("compute_ugly_loop", (), tolerance=ROUNDING),
    Case("compute_hidden_loading", (), settle_steps=10),
    Case("compute_accumulation", ()),
    Case("compute_inference", ()),
    Case("compute_charlm", ()),
    Case("compute_suspects", (), tolerance=ROUNDING),
    Case("compute_roads", (), tolerance=ROUNDING, unseen=True),
)

# Of the second set: whoever made rules has read these since, most of them because they were missed.
_READ = (
    "allocation_volume",
    "batch_verses",
    "compute_pendulum",
    "compute_summaries",
    "growth_auroc",
    "host_audit",
    "host_checks",
    "host_transcripts",
    "input_restarts",
    "input_thumbnails",
    "launch_gates",
    "recompute_answers",
    "recompute_buckets",
    "recompute_teacher",
    "straggler_sizes",
    "transfer_clips",
    "transfer_pairs",
)
# Longer ones, in the style of whole repositories, written when the first set was no longer new.
SECOND: tuple[Case, ...] = tuple(
    replace(case, unseen=case.name not in _READ)
    for case in (
        _one("input_thumbnails", "input", "birds/data.py"),
        _one("input_reviews", "input", "reviews/data.py"),
        _one("input_tides", "input", "tides/gauges.py", tolerance=ROUNDING),
        _one("input_shards", "input", "shards.py"),
        _one("input_replay", "input", "memory.py", tolerance=ROUNDING),
        # A restarted loader draws other melodies.
        _one("input_restarts", "input", tolerance=None),
        _one("transfer_pairs", "transfer"),
        _one("transfer_clips", "transfer", "clips/loading.py", tolerance=ROUNDING),
        _one("host_audit", "host", "audit.py"),
        _one("host_transcripts", "host", "speech/report.py"),
        _one("host_checks", "host", tolerance=ROUNDING),
        _one("launch_positions", "launch", tolerance=ROUNDING),
        _one("launch_gates", "launch", tolerance=ROUNDING),
        _one("launch_noising", "launch", tolerance=ROUNDING),
        _one("sync_captions", "sync", "scoring.py"),
        _one("sync_gan", "sync"),
        _one("sync_returns", "sync"),
        _one("allocation_volume", "allocation"),
        _one("precision_adjacency", "precision", "stations.py", tolerance=None),
        _one("optimizer_layerwise", "optimizer", tolerance=ROUNDING),
        _one("evaluation_trainer", "evaluation"),
        Case("evaluation_views", (Culprit("evaluation"),), block_steps=40),
        Case("batch_verses", (Culprit("batch"),), tolerance=None, fixed_work=8),
        _one("recompute_teacher", "recompute", tolerance=ROUNDING),
        _one("recompute_buckets", "recompute", tolerance=ROUNDING),
        _one("recompute_answers", "recompute", tolerance=ROUNDING),
        _one("growth_auroc", "growth"),
        _one("growth_journal", "growth", "journal.py"),
        Case("communication_metrics", (Culprit("communication"),), tolerance=ROUNDING, ranks=2),
        Case("straggler_sizes", (Culprit("straggler"),), tolerance=ROUNDING, ranks=2),
        Case("compute_whales", (), settle_steps=10),
        Case("compute_pendulum", ()),
        Case("compute_chorales", (), block_steps=50),
        Case("compute_forecasts", (), block_steps=100),
        Case("compute_bert", ()),
        Case("compute_replies", ()),
        Case("compute_microbatches", (), tolerance=ROUNDING, settle_steps=6),
        Case("compute_compiled", ()),
        Case("compute_summaries", ()),
    )
)

# A third set, again by people who had not seen the rules.
THIRD: tuple[Case, ...] = tuple(
    replace(case, unseen=True)
    for case in (
        _one("input_rarities", "input", "plankton/sampling.py"),
        _one("transfer_grids", "transfer", "grids/engine.py"),
        _one("host_routes", "host", "moe/callbacks.py"),
        _one("launch_quantiles", "launch", "load/losses.py", tolerance=ROUNDING),
        _one("sync_anchors", "sync", "detector/loss.py"),
        _one("optimizer_clients", "optimizer", "federated/client.py", tolerance=ROUNDING),
        _one("evaluation_recall", "evaluation"),
        _one("recompute_tracks", "recompute", "tracks/prior.py"),
        _one("growth_snapshots", "growth", "averaging.py", tolerance=ROUNDING),
        Case("compute_denoiser", (), tolerance=ROUNDING),
        Case("compute_sirens", ()),
        Case("compute_mosaics", ()),
    )
)

# A fourth set, and before it some of another that taught a rule something.
FOURTH: tuple[Case, ...] = (
    _one("transfer_elevators", "transfer", "agent/replay.py"),
    _one("growth_demand", "growth", "forecast/callbacks.py"),
    # Other rows are in a batch.
    Case("batch_turbines", (Culprit("batch", "settings.py"),), tolerance=None, fixed_work=8),
    *(
        replace(case, unseen=True)
        for case in (
            _one("input_birdsong", "input", "birds/recordings.py"),
            _one("input_promoters", "input", "promoters/encoding.py"),
            _one("transfer_grasping", "transfer"),
            _one("host_openings", "host", "opening_book/callbacks.py"),
            _one("host_playlists", "host", "playlists/metrics.py"),
            _one("launch_lidar", "launch", "sampling.py"),
            _one("sync_phonemes", "sync"),
            _one("recompute_kinship", "recompute", "gwas/losses.py"),
            Case("evaluation_reservoirs", (Culprit("evaluation", "hydro/settings.py"),), block_steps=40),
            _one("growth_walker", "growth", tolerance=ROUNDING),
            Case("compute_radar", ()),
            Case("compute_sessions", ()),
        )
    ),
)

CASES = FIRST + SECOND + THIRD + FOURTH
