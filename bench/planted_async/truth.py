"""What is wrong in each script for the simulated device, and on which profile?

As in bench/planted, but a script prints its loss once, at the end: a line per step would make the
host wait for the device. `run.py` measures what the repair is worth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from diagnose.measure.twins.cases import ROUNDING, Case, Culprit

HOME = Path(__file__).parent


@dataclass(frozen=True)
class Timed:
    """A script and the device on which its truth holds."""

    case: Case
    profile: str
    limit_mib: int = 0  # of the device's memory; 0: as it is

    @property
    def name(self) -> str:
        return f"{self.case.name} on {self.profile}"

    @property
    def variables(self) -> dict[str, str]:
        """Of the processes that run it."""
        limit = {"FAKEGPU_LIMIT_BYTES": str(self.limit_mib * 2**20)} if self.limit_mib else {}
        return {"FAKEGPU_PROFILE": self.profile, **limit}


def _one(name: str, cause: str, profile: str, fixed_work: int = 1) -> Timed:
    # Other rows are in a batch where one step does the work of several.
    tolerance = ROUNDING if fixed_work == 1 else None
    return Timed(
        Case(name, (Culprit(cause),), tolerance, fixed_work=fixed_work, home=HOME), profile
    )


def _ranks(name: str, cause: str, profile: str) -> Timed:
    """On two devices, whose exchanges have a stream of their own. What is spread otherwise between
    the ranks is another sum."""
    tolerance = None if cause == "straggler" else ROUNDING
    return Timed(Case(name, (Culprit(cause),), tolerance, ranks=2, home=HOME), profile)


def _healthy(name: str, profile: str) -> Timed:
    return Timed(Case(name, (), ROUNDING, home=HOME), profile)


def _unseen(timed: Timed) -> Timed:
    """Written without knowledge of the rules of the tool."""
    return replace(timed, case=replace(timed.case, unseen=True))


CASES: tuple[Timed, ...] = (
    _one("input_rows", "input", "slow"),
    _one("input_half", "input", "slow"),
    _one("input_worker", "input", "slow"),
    _one("launch_rows", "launch", "h100"),
    _one("launch_rows", "launch", "slow"),
    _one("batch_thin_layers", "batch", "h100", fixed_work=8),
    _one("transfer_pageable", "transfer", "h100"),
    _one("transfer_pageable", "transfer", "v100"),
    _one("sync_masks", "sync", "h100"),
    _one("sync_print", "sync", "slow"),
    _one("sync_metrics", "sync", "h100"),
    _one("optimizer_loop", "optimizer", "h100"),
    _one("optimizer_loop", "optimizer", "slow"),
    _one("evaluation_often", "evaluation", "slow"),
    _one("recompute_table", "recompute", "slow"),
    _one("precision_double", "precision", "h100"),
    # The room of one stream fits, and little else.
    replace(_one("allocation_streams", "allocation", "h100"), limit_mib=68),
    _one("host_checksum", "host", "h100"),
    _ranks("straggler_lengths", "straggler", "slow"),
    _ranks("communication_micro_batches", "communication", "h100"),
    _healthy("host_checksum", "slow"),
    _healthy("compute_plain", "slow"),
    _healthy("compute_hidden_rows", "slow"),
    _healthy("compute_reads_before_step", "slow"),
    _healthy("compute_reads_after_step", "slow"),
    _healthy("compute_pinned", "h100"),
    _healthy("compute_worker", "slow"),
    _healthy("compute_scaler", "slow"),
    _healthy("compute_prefetch", "h100"),
    _healthy("compute_logs", "slow"),
    _healthy("compute_evaluation", "slow"),
    *map(
        _unseen,
        (
            _one("input_single_worker", "input", "slow"),
            _one("input_half_hidden", "input", "slow"),
            _one("transfer_unpinned", "transfer", "h100"),
            _one("sync_layer_readings", "sync", "slow"),
            _one("sync_kept_pixels", "sync", "slow"),
            _one("sync_prints", "sync", "slow"),
            _one("evaluation_exposed", "evaluation", "slow"),
            _one("optimizer_single_tensors", "optimizer", "h100"),
            _one("launch_experts", "launch", "h100"),
            _healthy("compute_hidden_worker", "slow"),
            _healthy("compute_log_seldom", "slow"),
            _healthy("compute_hidden_scores", "slow"),
            _healthy("compute_reads_at_end", "slow"),
        ),
    ),
)
