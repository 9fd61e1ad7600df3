"""What do the report on scaling and `scale` say? What several ranks lose, and what more would."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from diagnose.analyze import derive
from diagnose.analyze.links import HOP_SOURCE, Cluster
from diagnose.analyze.optimize.effects import either
from diagnose.analyze.optimize.experiment import Outcome, memory_change, worst_check
from diagnose.analyze.scaling import ledger as scaling
from diagnose.analyze.scaling.cadence import CADENCES, cadence_share
from diagnose.analyze.scaling.cluster import LARGEST_ERROR, Prediction, Simulation
from diagnose.analyze.scaling.findings import (
    EFFICIENCY,
    is_slower_than_one,
    judge_scaling,
    many_times,
    say_ending,
)
from diagnose.analyze.scaling.ledger import Ledger, RankTimes, build_ledger, find_obstacle
from diagnose.analyze.scaling.options import best_options, count_all_reduces, judge_options
from diagnose.analyze.scaling.recommend import Flag, recommend
from diagnose.analyze.units import (
    BYTES,
    MILLISECONDS,
    PERCENT,
    TIMES,
    milliseconds,
    number,
    percent,
    scaled,
    spread,
)
from diagnose.records.ranks import Rank, ScalingRecord
from diagnose.records.run import Measurement
from diagnose.records.stats import Interval
from diagnose.render.figures import GREEN, ORANGE, PURPLE, SKY
from diagnose.render.findings import finding_sections
from diagnose.render.markdown import Markup, clean, prose
from diagnose.render.optimize import experiments as experiment_tables
from diagnose.render.page import Page, Place, Section, image
from diagnose.render.part import Part
from diagnose.render.table import Cell, Column, Doubt, code, missing, table
from diagnose.render.waterfall import UNEXPLAINED, Step, waterfall

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE_NAME = "scaling.svg"
# The only job that the recommended command line starts.
SCRIPTED_WORKLOAD = "dgca"
_COLORS = {scaling.COMPUTE: SKY, scaling.INPUT: GREEN, scaling.WAITING: PURPLE}


def page(record: ScalingRecord) -> Page:
    ledger, outcomes = build_ledger(record), judge_options(record)
    faster = [each for each in outcomes if each.verdict == "FASTER"]
    return Page(
        header=record.header,
        title=f"{record.header.label}: how {record.workload.name} scales over "
        f"{len(record.ranks)} ranks on {record.header.machine.device_name}",
        question="Where is scaling lost, and which option gives it back?",
        answer=answer(record),
        sections=[
            Section(Place.BOTTLENECK, "Where scaling is lost", _ledger(record, ledger)),
            *_findings(record),
            Section(
                Place.BEFORE_AFTER,
                "DDP options",
                [
                    *table(faster, OPTION_COLUMNS[:-3], "No option is proven faster."),
                    *_not_faster(outcomes),
                ],
            ),
            *_recommended(record, outcomes),
            _detail("Scaling: ranks", _ranks(record)),
            _detail("Scaling: every DDP option", table(outcomes, OPTION_COLUMNS)),
            _detail("Scaling: behind the verdicts", _evidence(outcomes)),
            _detail("Scaling: evaluation and saving", _cadences(record)),
        ],
        workload=record.workload,
        method=_method(record),
    )


def answer(record: ScalingRecord) -> str:
    """How far it scales, what takes most away and what gives it back, in one sentence."""
    ledger, ended = build_ledger(record), say_ending(record)
    if ledger is None:
        return f"Scaling could not be measured: {find_obstacle(record)}. {ended}".rstrip()
    text = f"{ledger.ranks} ranks reach {percent(ledger.efficiency.center)} of "
    text += many_times(ledger.ranks)
    if is_slower_than_one(ledger):
        text += ", less than one alone"
    largest = ledger.causes[0]
    if largest.cost.seconds.is_above(0):
        text += f"; the largest loss is {largest.name}, {milliseconds(largest.cost.seconds)} ms of "
        text += f"a step of {milliseconds(ledger.together)} ms"
    else:
        text += "; no single loss is proven"
    return f"{text}{_say_option(record)}. {ended}".rstrip()


def _say_option(record: ScalingRecord) -> str:
    if not record.comparisons:
        return ""
    texts = [
        f"{each.name} makes a step {spread(each.timed.speedup)}x as fast"
        for each in best_options(judge_options(record))
        if each.timed is not None
    ]
    return f"; {either(texts)}" if texts else "; no option is proven to recover it"


def _findings(record: ScalingRecord) -> list[Section]:
    """Open what to do; the answer says how far it scales, the ledger what is excluded."""
    findings = [each for each in judge_scaling(record) if each.kind != EFFICIENCY]
    sections = finding_sections(findings, "Scaling", "No loss of scaling is proven to matter.")
    return [
        replace(each, title=f"Scaling: {each.title.lower()}") if each.folded else each
        for each in sections
        if each.folded or each.title in ("What to do", "Flags")
    ]


def _detail(title: str, blocks: Sequence[str]) -> Section:
    return Section(Place.DETAILS, title, blocks, folded=True)


# --- the ledger ---


@dataclass(frozen=True)
class _Line:
    name: str
    milliseconds: float | Interval
    share: Interval | None = None


def _ledger(record: ScalingRecord, ledger: Ledger | None) -> list[str]:
    if ledger is None:
        return [f"There is no ledger: {prose(find_obstacle(record))}."]
    lines = [
        _Line("one rank alone", ledger.alone),
        *(_Line(f"+ {it.name}", it.cost.seconds, it.cost.share) for it in ledger.losses),
        _Line(f"+ {UNEXPLAINED}", ledger.unassigned_seconds),
        _Line(f"= {ledger.ranks} ranks together", ledger.together),
        _Line("all losses", ledger.total.cost.seconds, ledger.total.cost.share),
    ]
    columns: tuple[Column[_Line], ...] = (
        Column("", lambda line: line.name),
        Column(Markup("ms per step [95 %]"), lambda line: line.milliseconds, MILLISECONDS),
        Column("share of the step together", lambda line: line.share, PERCENT),
    )
    figure = image("From one rank alone to all ranks together", FIGURE_NAME, figures(record))
    words = (
        f"{_transfer(ledger)} Each row is a median of paired differences; medians need not add up."
    )
    return [*figure, *table(lines, columns), prose(words)]


def _transfer(ledger: Ledger) -> str:
    if ledger.transfer.value is None:
        return f"Communication is not split: {ledger.transfer.reason}."
    exposed = max(0.0, min(ledger.transfer.value, ledger.communication.cost.seconds.center))
    return (
        f"By the measured curve the buckets take {1e3 * ledger.transfer.value:.2f} ms one after "
        f"the other, {1e3 * exposed:.2f} ms of it outside the backward pass: the transfer. What "
        "takes longer than the curve says is the bandwidth shortfall."
    )


def figures(record: ScalingRecord) -> Mapping[str, Callable[[], Figure]]:
    ledger = build_ledger(record)
    return {} if ledger is None else {FIGURE_NAME: partial(draw_ledger, ledger)}


def draw_ledger(ledger: Ledger) -> Figure:
    """Each loss begins where the one before it ended; a negative one leads back."""
    steps = [
        Step(
            each.name,
            1e3 * each.cost.seconds.center,
            certain=each.cost.seconds.is_above(0),
            interval=each.cost.seconds.map(lambda seconds: 1e3 * seconds),
            color=_COLORS.get(each.name, ORANGE),
        )
        for each in ledger.losses
    ]
    together = f"{ledger.ranks} ranks together"
    return waterfall(
        Step("one rank alone", 1e3 * ledger.alone.center),
        steps,
        Step(together, 1e3 * ledger.together.center),
    )


# --- ranks, options, cadence, command ---


def _ranks(record: ScalingRecord) -> list[str]:
    times = {each.rank.rank: each for each in scaling.rank_times(record)}
    why = missing(find_obstacle(record) or "not timed")

    def timed(value: Callable[[RankTimes], Cell]) -> Callable[[Rank], Cell]:
        return lambda rank: value(times[rank.rank]) if rank.rank in times else why

    columns: tuple[Column[Rank], ...] = (
        Column("rank", lambda rank: rank.rank),
        Column("host", lambda rank: rank.node),
        Column("device", lambda rank: rank.device_name, left=True),
        Column("NUMA node", lambda rank: rank.numa_node),
        Column("threads", lambda rank: rank.threads),
        Column("own work ms", timed(lambda it: it.local), MILLISECONDS),
        Column("full step ms", timed(lambda it: it.full), MILLISECONDS),
        Column("over the mean", timed(lambda it: it.excess), PERCENT),
        Column("waits ms", timed(lambda it: it.waits), MILLISECONDS),
        Column("W", timed(lambda it: it.watts)),
    )
    return table(record.ranks, columns)


def _of_timed(value: Callable[[Outcome], Cell]) -> Callable[[Outcome], Cell]:
    """A cell that only an option has that was timed."""

    def cell(outcome: Outcome) -> Cell:
        if outcome.timed is None:
            return missing(f"{outcome.verdict}: {outcome.reason}")
        return value(outcome)

    return cell


def _step_seconds(side: Measurement | None) -> Cell:
    return missing("not timed") if side is None else derive.step_seconds(side)


def _all_reduces(outcome: Outcome) -> Cell:
    counts = count_all_reduces(outcome)
    return missing("they were not counted") if counts is None else f"{counts[0]} → {counts[1]}"


def _equality(outcome: Outcome) -> Cell:
    equality = outcome.comparison.equality
    if equality is None or not equality.checks:
        return missing("no proof of equal results was recorded")
    worst = worst_check(equality.checks)
    found = "shape or finiteness differs" if worst.worst is None else f"worst {worst.worst:.1e}"
    detail = f"({worst.name}: {found}, allowed {worst.tolerance:.0e})"
    if all(check.equal for check in equality.checks):
        return f"yes {detail}"
    return f"{'no' if equality.claim == 'equal' else 'not claimed'} {detail}"


def _sides(outcome: Outcome) -> str:
    return f"{outcome.comparison.before_text} → {outcome.comparison.after_text}"


OPTION_COLUMNS: tuple[Column[Outcome], ...] = (
    Column("option", lambda it: code(it.name)),
    Column("before → after", _sides, left=True),
    Column("all-reduces", _of_timed(_all_reduces)),
    Column("before ms", _of_timed(lambda it: _step_seconds(it.comparison.before)), MILLISECONDS),
    Column("after ms", _of_timed(lambda it: _step_seconds(it.comparison.after)), MILLISECONDS),
    Column(
        Markup("speed-up [95 %]"),
        _of_timed(lambda it: it.timed.speedup if it.timed else None),
        TIMES,
    ),
    Column("equal results?", _equality, left=True),
    Column("verdict", lambda it: Doubt(it.verdict, it.reason if it.timed else ""), left=True),
    Column("peak memory", _of_timed(lambda it: memory_change(it.comparison)), BYTES),
    Column("blocks", _of_timed(lambda it: it.timed.blocks if it.timed else None)),
)


def _not_faster(outcomes: Sequence[Outcome]) -> list[str]:
    """The options that are not proven faster, by verdict."""
    names: dict[str, list[str]] = {}
    for each in outcomes:
        if each.verdict != "FASTER":
            names.setdefault(each.verdict, []).append(code(each.name))
    lines = [f"{prose(verdict)}: {', '.join(listed)}" for verdict, listed in names.items()]
    return ["; ".join(lines) + "."] if lines else []


def _evidence(outcomes: Sequence[Outcome]) -> list[str]:
    return [*experiment_tables.evidence(outcomes), *experiment_tables.facts(outcomes)]


def _cadences(record: ScalingRecord) -> list[str]:
    costs = record.cadence
    if costs is None:
        return ["Neither evaluation nor saving was timed."]
    readings = (costs.evaluation_seconds, costs.saving_seconds)
    evaluation, saving = (
        f"an unknown time ({each.reason})" if each.value is None else f"{number(each.value, 3)} s"
        for each in readings
    )
    columns: tuple[Column[tuple[int, int]], ...] = (
        Column("evaluate every", lambda every: every[0]),
        Column("save every", lambda every: every[1]),
        Column("share of wall time", lambda every: cadence_share(record, *every), PERCENT),
    )
    text = (
        f"One evaluation of {costs.evaluated_samples} samples takes {evaluation}, one saving "
        f"{saving}. A larger evaluation set costs in proportion."
    )
    return [prose(text), *table(CADENCES, columns)]


def _recommended(record: ScalingRecord, outcomes: Sequence[Outcome]) -> list[Section]:
    """The command, and folded what justifies it; of another job, the changes themselves."""
    found, scripted = recommend(record, outcomes), record.workload.name == SCRIPTED_WORKLOAD
    columns: tuple[Column[Flag], ...] = (
        Column(
            "flag" if scripted else "change",
            lambda flag: code(flag.text) if scripted else flag.code,
        ),
        Column("row that justifies it", lambda flag: flag.row, left=True),
    )
    rows = table((found.launcher, *found.flags), columns)
    remarks = [f"- {prose(remark)}" for remark in found.remarks]
    own = "This job has its own script; these are the changes that are proven here."
    first = [f"```\n{found.command}\n```"] if scripted else [own, *rows]
    return [
        Section(Place.COMMAND, "Recommended command", [*first, *remarks]),
        _detail("Scaling: why these flags", rows if scripted else []),
    ]


def _method(record: ScalingRecord) -> list[tuple[str, Cell]]:
    blocks = [len(row) for series in record.series for row in series.slot_seconds if row]
    buckets = ", ".join(scaled(nbytes, "B") for nbytes in record.bucket_bytes)
    return [
        ("ranks, hosts, backend", f"{len(record.ranks)}, {record.nodes}, {record.backend}"),
        ("samples per step and rank", record.samples_per_step),
        ("gradients", scaled(record.gradient_bytes, "B")),
        ("buckets, first exchanged first", buckets or "not recorded"),
        ("blocks of the ledger", min(blocks, default=0)),
        ("run settings", ", ".join(f"{key} {value}" for key, value in record.settings.items())),
    ]


# --- scale ---


def render_scale(simulation: Simulation) -> str:
    """The simulated ranks, how well the model hits those at hand, and what it assumes."""
    record, check, measured = simulation.record, simulation.check, simulation.measured
    columns: tuple[Column[Prediction], ...] = (
        Column("ranks", lambda it: it.ranks),
        Column("hosts", lambda it: "–" if it.hosts is None else it.hosts),
        Column("all-reduce", lambda it: " / ".join(it.algorithms) or "none", left=True),
        Column("all buckets ms", lambda it: it.transfer_seconds, MILLISECONDS),
        Column("exposed ms", lambda it: it.exposed_seconds, MILLISECONDS),
        Column("step ms", lambda it: it.step_seconds, MILLISECONDS),
        Column("efficiency", lambda it: it.efficiency, PERCENT),
        Column("samples/s", lambda it: it.ranks * record.samples_per_step / it.step_seconds),
    )
    job, link = f"{record.workload.name} of {record.header.label}", simulation.cluster.inside.name
    error = check.step_seconds / measured.center - 1
    blocks = [
        f"{clean(job)} on {link}: a simulation, not a measurement.",
        *table(simulation.predictions, columns),
        f"Self-check: for the {check.ranks} ranks at hand it says "
        f"{number(1e3 * check.step_seconds)} ms; measured were {milliseconds(measured)} ms "
        f"({100 * error:+.1f} %, refused beyond {percent(LARGEST_ERROR)}).",
        "\n".join(f"- {line}" for line in assumptions(simulation.cluster)),
    ]
    return "\n\n".join(blocks) + "\n"


def assumptions(cluster: Cluster) -> list[str]:
    link, source = cluster.inside, cluster.inside.cite()
    hops = f"{scaled(link.bytes_per_second, 'B/s')} and {1e6 * link.hop_seconds:.3g} µs per hop"
    if cluster.ranks_per_host is None:
        hosts = "More ranks are joined as these were, each by a link of its own."
    else:
        source += f"; {HOP_SOURCE}"
        hosts = "One rank a host, each with an adapter of its own, no congestion."
    if cluster.between is not None:
        sharing = "for each" if cluster.ranks_per_adapter == 1 else "for all of them"
        hosts = (
            f"{cluster.ranks_per_host} ranks a host; between hosts {cluster.between.name}, one "
            f"adapter {sharing}, no congestion."
        )
    return [
        "Every rank computes as fast as here, with the same batch per rank; nothing else differs.",
        f"{link.name}: {hops} ({source}).",
        hosts,
        "All-reduces cost what the faster of ring and tree costs; see docs/method.md.",
    ]


PART = Part(ScalingRecord, "Where is scaling lost, and which option gives it back?", page, figures)
