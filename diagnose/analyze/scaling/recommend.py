"""How should this job be started on this machine? A command line whose every flag has its row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diagnose.analyze.optimize.effects import either, is_proven_equal, leaders, speed
from diagnose.analyze.optimize.experiment import Outcome
from diagnose.analyze.scaling.cadence import CADENCES, cadence_share
from diagnose.analyze.scaling.findings import is_slower_than_one
from diagnose.analyze.scaling.ledger import build_ledger
from diagnose.analyze.units import percent, percent_interval, spread
from diagnose.analyze.verdicts import MATTERS
from diagnose.records.ranks import ScalingRecord

ALONE = "python"  # the launcher of a single process
SCRIPT = "bench/dgca/train.py --do_train --preprocessed_train data/train.pt"
# What the training script does when it is told nothing.
DEFAULT_BUCKET_CAP = 100
# The cap that every row of the buckets is compared with: torch's own.
TORCH_BUCKET_CAP = 25

_ACCUMULATION = {"accumulate_2": 2, "accumulate_4": 4}
_BUCKETS = {"bucket_cap_100": 100, "bucket_cap_200": 200}
_STATIC_GRAPH = "static_graph"
# What the training script has no option for, and what to change in the code instead.
_IN_CODE = {
    "compress_fp16": "register the hook fp16_compress_hook",
    "compress_bf16": "register the hook bf16_compress_hook",
    "fsdp2": "wrap the model with fully_shard instead of DDP",
    "zero_optimizer": "shard the optimizer with ZeroRedundancyOptimizer",
    "bucket_view": "DDP(gradient_as_bucket_view=True); the training script has it on",
}


@dataclass(frozen=True)
class Flag:
    """One argument, and the row of this report that justifies it."""

    text: str  # for the training script of DGCA
    code: str  # what it means to DDP, for any other job
    row: str


@dataclass(frozen=True)
class Recommendation:
    """What to run. `remarks` say what was left out and why."""

    launcher: Flag
    flags: tuple[Flag, ...]
    remarks: tuple[str, ...]

    @property
    def command(self) -> str:
        return " ".join([self.launcher.text, SCRIPT, *(flag.text for flag in self.flags)])


def recommend(record: ScalingRecord, outcomes: Sequence[Outcome]) -> Recommendation:
    """Only what is proven equal and faster, here, becomes a flag."""
    proven = {
        each.comparison.key: each
        for each in outcomes
        if each.comparison.form == "after" and is_proven_equal(each) and each.timed is not None
    }
    faster = {key: each for key, each in proven.items() if each.verdict == "FASTER"}
    launcher, (cadence, remarks) = _launcher(record, faster), _cadence(record)
    if launcher.text == ALONE:
        return Recommendation(launcher, cadence, remarks)
    flags: list[Flag] = []
    notes: list[str] = []
    accumulation, graph = _fastest(faster, _ACCUMULATION, notes), faster.get(_STATIC_GRAPH)
    if accumulation is not None and graph is not None:
        # torch fails an internal assertion when a static graph meets no_sync().
        notes.append(f"{accumulation.name} and {graph.name} exclude each other in torch")
        kept = _choose([accumulation, graph], notes)
        accumulation, graph = (kept, None) if kept is accumulation else (None, kept)
    if accumulation is not None:
        flags.append(_accumulation_flag(record, accumulation))
        notes.append(
            "accumulation makes the effective batch larger: check that the job still learns as well"
        )
    flags += _bucket_flags(proven, faster, notes)
    if graph is not None:
        flags.append(Flag("--ddp_static_graph", "DDP(static_graph=True)", _row(graph)))
    return Recommendation(
        launcher,
        (*flags, *cadence),
        (*notes, *_in_code(outcomes), *remarks),
    )


def _launcher(record: ScalingRecord, faster: dict[str, Outcome]) -> Flag:
    """All ranks, or one process where even the best option leaves them slower than one."""
    per_host, ledger = max(1, len(record.ranks) // max(1, record.nodes)), build_ledger(record)
    command = f"torchrun --nproc-per-node={per_host}"
    if record.nodes > 1:
        command += f" --nnodes={record.nodes} --rdzv-backend=c10d --rdzv-endpoint=HOST:29500"
    if ledger is None:
        return Flag(command, command, "nothing: one rank and all ranks were not both timed")
    row = f"the ledger: efficiency {percent_interval(ledger.efficiency)}"
    if not is_slower_than_one(ledger):
        return Flag(command, command, row)
    # The best option alone, since gains of several options do not multiply.
    best = max((speed(each) for each in faster.values()), default=1.0)
    if ledger.ranks * ledger.efficiency.center * best < 1:
        return Flag(ALONE, "one process", f"{row}: all ranks together are slower than one alone")
    return Flag(command, command, f"{row}: slower than one alone without the flags below")


def _accumulation_flag(record: ScalingRecord, outcome: Outcome) -> Flag:
    steps = _ACCUMULATION[outcome.comparison.key]
    # The script divides its batch by the steps, so the micro-batch of the row needs both.
    batch = record.samples_per_step * steps
    return Flag(
        f"--train_batch_size {batch} --gradient_accumulation_steps {steps}",
        f"{steps} micro-batches per optimizer step, forward and backward of all but the last "
        "inside no_sync()",
        _row(outcome),
    )


def _bucket_flags(
    proven: dict[str, Outcome], faster: dict[str, Outcome], notes: list[str]
) -> list[Flag]:
    """The fastest cap; where the script's own default is proven slower than torch's, torch's."""
    best = _fastest(faster, _BUCKETS, notes)
    default = proven.get(f"bucket_cap_{DEFAULT_BUCKET_CAP}")
    if best is not None:
        cap, row = _BUCKETS[best.comparison.key], _row(best)
    elif default is not None and default.verdict == "SLOWER":
        cap, row = TORCH_BUCKET_CAP, _row(default)
    else:
        return []
    return [Flag(f"--ddp_bucket_cap_mb {cap}", f"DDP(bucket_cap_mb={cap})", row)]


def _cadence(record: ScalingRecord) -> tuple[tuple[Flag, ...], tuple[str, ...]]:
    """The most frequent evaluation and saving that cost no more than a change is worth."""
    shares = [(each, cadence_share(record, *each)) for each in CADENCES]
    known = [(each, share.value) for each, share in shares if share.value is not None]
    if not known:
        return (), (f"no cadence of evaluation and saving: {shares[0][1].reason}",)
    (evaluate, save), share = next((each for each in known if each[1] <= MATTERS), known[-1])
    flag = Flag(
        f"--eval_steps {evaluate} --save_steps {save}",
        f"evaluate every {evaluate} steps, save every {save}",
        f"the cadence table: {percent(share)} of wall time",
    )
    return (flag,), () if share <= MATTERS else (
        "even the rarest cadence of the table takes more than "
        f"{percent(MATTERS)} of wall time: evaluate on fewer samples",
    )


def _in_code(outcomes: Sequence[Outcome]) -> list[str]:
    return [
        f"{_IN_CODE[each.comparison.key]}: {_row(each)}"
        + ("" if is_proven_equal(each) else ", results are not equal")
        for each in outcomes
        if each.verdict == "FASTER" and each.comparison.key in _IN_CODE
    ]


def _fastest(faster: dict[str, Outcome], keys: Iterable[str], notes: list[str]) -> Outcome | None:
    found = [faster[key] for key in keys if key in faster]
    return _choose(found, notes) if found else None


def _choose(tried: Sequence[Outcome], notes: list[str]) -> Outcome:
    """The fastest; a command has room for one of those that overlap, and a note says so."""
    best = leaders(tried)
    if len(best) > 1:
        names = either([each.name for each in best])
        notes.append(f"{names}: the command has {best[0].name}")
    return best[0]


def _row(outcome: Outcome) -> str:
    gain = "" if outcome.timed is None else f" {spread(outcome.timed.speedup)}x,"
    return f"{outcome.name}:{gain} {outcome.verdict}"
