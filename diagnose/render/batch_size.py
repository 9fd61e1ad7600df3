"""What does the report on batch sizes say? The batch to use, throughput and memory, every probe."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from diagnose.analyze import derive
from diagnose.analyze.batch_size import (
    Answer,
    CropsRow,
    Row,
    answer,
    crops_rows,
    judge,
    smallest_refused,
)
from diagnose.analyze.units import BYTES, MILLISECONDS, PERCENT, TIMES, Unit, number, scaled, spread
from diagnose.records.batch_size import BatchSizeRecord, Configuration, Estimate, Probe
from diagnose.records.stats import Interval
from diagnose.render.figures import LINES, label
from diagnose.render.markdown import Markup, escape, prose
from diagnose.render.page import Page, Place, Section, image
from diagnose.render.part import Part
from diagnose.render.table import Cell, Column, Doubt, missing, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURE_NAME = "batch_size.svg"
# As in the field report whose table this is.
SAMPLES = 100
# More room than this above the curves is left to no loader: its line would flatten them.
_ROOM_ABOVE = 1.15
_NOTE_HEIGHT = 0.08  # of one line of text, as a share of the axis
_SHORT = Unit(significant=3)


def page(record: BatchSizeRecord) -> Page:
    answers = [judge(each) for each in record.configurations]
    figure = image("Throughput and memory over the batch size", FIGURE_NAME, figures(record))
    return Page(
        header=record.header,
        title=f"{record.header.label}: the batch size of {record.workload.name} on "
        f"{record.header.machine.device_name}",
        question="Which batch size?",
        answer=answer(record),
        sections=[
            Section(Place.FIRST_SCREEN, "Batch size", [*figure, *answers_table(answers)]),
            Section(Place.FIRST_SCREEN, "By cap of image tiles", crops_table(answers)),
            *(section for each in answers for section in _sections(each, len(answers) == 1)),
        ],
        workload=record.workload,
        method=[
            ("step", record.task),
            ("ranks", record.ranks),
            ("configurations planned", ", ".join(record.planned)),
        ],
    )


def figures(record: BatchSizeRecord) -> Mapping[str, Callable[[], Figure]]:
    """One figure, if anything was swept."""
    swept = [each for each in map(judge, record.configurations) if each.rows]
    return {FIGURE_NAME: functools.partial(draw_batch_sizes, swept)} if swept else {}


def answers_table(answers: Sequence[Answer]) -> list[str]:
    def largest(each: Answer) -> Cell:
        if each.largest is None:
            return missing(each.configuration.reason or "nothing fits")
        return each.largest if each.is_exact else Doubt(f"at least {each.largest}", each.doubt)

    return table(
        answers,
        [
            Column("configuration", lambda each: each.configuration.key),
            Column("largest that fits", largest),
            Column(
                "smallest with ≥ 95 % of peak samples/s",
                lambda each: missing(each.reason) if each.knee is None else each.knee,
            ),
            Column("use", lambda each: missing(each.reason) if each.use is None else each.use),
        ],
    )


def crops_table(answers: Sequence[Answer]) -> list[str]:
    """max_crops, batch, memory, samples/s, and the factors of the published guide beside them."""
    rows = crops_rows(answers)
    if not rows:
        return []

    def largest(row: CropsRow) -> Cell:
        each = row.answer
        if each.largest is None:
            return missing(each.configuration.reason or "nothing fits")
        return each.largest if each.is_exact else Doubt(f"at least {each.largest}", each.doubt)

    columns: list[Column[CropsRow]] = [
        Column("max_crops", lambda row: row.max_crops),
        Column("tiles, most", lambda row: _tiles(row.answer.configuration)),
        Column("largest batch", largest),
        Column("peak memory", lambda row: row.peak_bytes, BYTES),
        Column("samples/s of the largest timed", lambda row: row.samples_per_second),
        Column("the guide's factor", lambda row: row.factor),
        Column("its batch", lambda row: row.guide_batch),
        Column(
            "its error",
            lambda row: missing("no exact batch to compare") if row.error is None else row.error,
            Unit(1e2, "%", significant=2),
        ),
    ]
    words = (
        "The guide takes the batch that fits at max_crops of 4 or less times a factor. A positive "
        "error does not fit, a negative one leaves memory unused."
    )
    return [*table(rows, columns), words]


def _tiles(configuration: Configuration) -> Cell:
    found = configuration.settings.get("tiles_most")
    return found if isinstance(found, int) else missing("the inputs could not be encoded")


def _sections(each: Answer, alone: bool) -> list[Section]:
    configuration = each.configuration
    of = "" if alone else f", {configuration.key}"
    if not configuration.probes:
        return []  # the table of answers says why
    throughput = [*sweep_table(each), *_loader(each), *_inputs(configuration)]
    return [
        Section(Place.FIRST_SCREEN, f"Throughput by batch size{of}", throughput, folded=not alone),
        Section(Place.DETAILS, f"Probes and memory{of}", probes_table(each), folded=True),
        Section(Place.DETAILS, f"Rules of thumb{of}", rules_table(each), folded=True),
    ]


def sweep_table(each: Answer) -> list[str]:
    """Batch, time, gain, utilization, as the field reports have it, and what they leave out."""
    if not each.rows:
        sweep = each.configuration.sweep
        why = sweep.reason if sweep is not None else "nothing that fits was found"
        return [f"No throughput was measured: {prose(why)}"]
    marks = ((each.use, "use"), (each.largest, "largest"))
    columns: list[Column[Row]] = [
        Column("batch", lambda row: row.batch),
        Column(f"s for {SAMPLES} samples", lambda row: SAMPLES / row.samples_per_second.center),
        Column(Markup("gain [95 % interval]"), lambda row: _unless_itself(row.gain, "1"), TIMES),
        Column("utilization", lambda row: derive.utilization(row.measurement), PERCENT),
        Column(
            Markup("step ms [95 % interval]"),
            lambda row: derive.step_seconds(row.measurement),
            MILLISECONDS,
        ),
        Column(Markup("samples/s [95 % interval]"), lambda row: row.samples_per_second),
        Column(
            Markup("of peak [95 % interval]"),
            lambda row: _unless_itself(row.of_peak, "100 %"),
            PERCENT,
        ),
        Column("memory", lambda row: row.measurement.peak_bytes, BYTES),
        Column("J/sample", lambda row: derive.joules_per_sample(row.measurement), _SHORT),
        Column("", lambda row: ", ".join(w for batch, w in marks if batch == row.batch), left=True),
    ]
    return [*table(each.rows, columns), *_not_timed(each)]


def _unless_itself(ratio: Interval, itself: str) -> Cell:
    """What everything is compared with needs no interval."""
    return itself if ratio == Interval(1.0, 1.0, 1.0) else ratio


def _not_timed(each: Answer) -> list[str]:
    """The batch sizes that the user asked for in vain: refused, or never reached."""
    timed, refused = {row.batch for row in each.rows}, smallest_refused(each.configuration)
    absent = [batch for batch in each.configuration.asked if batch not in timed]
    too_large = [str(batch) for batch in absent if refused is not None and batch >= refused]
    untried = [str(batch) for batch in absent if str(batch) not in too_large]
    shown = []
    if too_large:
        shown.append(f"Asked for, but too large to fit: {', '.join(too_large)}.")
    if untried:
        shown.append(f"Asked for, but not tried: {', '.join(untried)}: {prose(each.doubt)}.")
    return shown


def _loader(each: Answer) -> list[str]:
    loader = each.configuration.loader
    if loader is None:
        return []
    if each.loader_samples_per_second is None:
        return [f"The loader was not measured: {prose(loader.reason)}."]
    rate = spread(each.loader_samples_per_second)
    return [f"The loader ({escape(loader.measurements[0].name)}) delivers {rate} samples/s."]


def _inputs(configuration: Configuration) -> list[str]:
    """What a job that writes answers was really asked: a cap of tiles is not their number."""
    settings = configuration.settings
    if "prompt_tokens_most" not in settings:
        return []
    most, mean = (float(settings[f"prompt_tokens_{name}"] or 0) for name in ("most", "mean"))
    text = (
        f"Every batch repeats the longest question, {number(most, 3)} tokens ({number(mean, 3)} on "
        f"average), and every answer has {settings['new_tokens']} tokens."
    )
    if "tiles_most" in settings:
        text += (
            f" The pictures have {settings['tiles_least']} to {settings['tiles_most']} tiles; "
            f"max_crops {settings['max_crops']} is only a cap."
        )
    return [prose(text)]


def probes_table(each: Answer) -> list[str]:
    """Every probe, its peak beside what a straight line through all peaks says."""
    probes, line = each.configuration.probes, each.line
    columns: list[Column[Probe]] = [
        Column("batch", lambda probe: probe.batch),
        Column(
            "result",
            lambda probe: probe.status + (" (fresh process)" if probe.fresh else ""),
            left=True,
        ),
        Column("peak", lambda probe: probe.peak_bytes, BYTES),
        Column(
            "by the line",
            lambda probe: None if line is None else line.predict_bytes(probe.batch),
            BYTES,
        ),
        Column("free before", lambda probe: probe.available_bytes, BYTES),
        Column(
            "fastest step ms", lambda probe: min(probe.step_seconds, default=None), MILLISECONDS
        ),
        Column("probe s", lambda probe: probe.seconds, _SHORT),
        Column("why", lambda probe: probe.reason, left=True),
    ]
    if line is None:
        memory = "Memory is known for fewer than two batch sizes, so there is no line."
    else:
        fixed, more = scaled(line.fixed_bytes, "B"), scaled(line.bytes_per_sample, "B")
        memory = f"The line: peak = {fixed} + {more} per sample."
    seconds = number(sum(probe.seconds for probe in probes), 3)
    whole = number(each.configuration.seconds, 3)
    cost = f"{len(probes)} probes take {seconds} s, including process starts, of {whole} s in all."
    return [*table(probes, columns), f"{memory} {cost}"]


def rules_table(each: Answer) -> list[str]:
    def span(rule: Estimate) -> Cell:
        return rule.low if rule.low == rule.high else f"{rule.low} to {rule.high}"

    columns: list[Column[Estimate]] = [
        Column("rule of thumb", lambda rule: rule.source),
        Column("recommends", span),
        Column("against the largest that fits", lambda rule: _compare(rule, each), left=True),
    ]
    return table(each.configuration.estimates, columns)


def _compare(rule: Estimate, each: Answer) -> str:
    if each.largest is None:
        return "nothing fits"
    if rule.high < each.largest:
        return f"too small: {number(each.largest / rule.high, 3)}x as many fit"
    if not each.is_exact:
        return f"cannot tell: at least {each.largest} fit"
    return f"too large: only {each.largest} fit" if rule.low > each.largest else "right"


def draw_batch_sizes(answers: Sequence[Answer]) -> Figure:
    """What does a larger batch gain, and what does it take? Throughput above, memory below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 5.4), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    for place, each in enumerate(answers):
        _draw_throughput(upper, each, _color(place))
        _draw_memory(lower, each, _color(place))
    rates = [row.samples_per_second for each in answers for row in each.rows]
    upper.set_ylim(0, _ROOM_ABOVE * max(max(rate.ends or (rate.center,)) for rate in rates))
    upper.set_ylabel("samples/s")
    for place, each in enumerate(answers):
        _draw_loader(upper, each, place)
    lower.set_xscale("log", base=2)
    lower.set_ylim(bottom=0)
    lower.set_ylabel("peak, GB")
    lower.set_xlabel("batch size; the ring marks the one to use")
    lower.xaxis.set_major_formatter("{x:g}")
    if len(answers) > 1:
        upper.legend(frameon=False)
    return figure


def _draw_throughput(axes: Axes, each: Answer, color: str) -> None:
    rates = {row.batch: row.samples_per_second for row in each.rows}
    centers = [rate.center for rate in rates.values()]
    name = label(each.configuration.key)
    axes.plot(list(rates), centers, color=color, marker="o", markersize=4, label=name)
    for batch, rate in rates.items():
        if rate.ends is not None:
            axes.vlines(batch, *rate.ends, color=color, linewidth=1.5)
    if each.use in rates:
        place = rates[each.use].center
        axes.plot([each.use], [place], "o", color=color, markersize=12, markerfacecolor="none")


def _draw_loader(axes: Axes, each: Answer, place: int) -> None:
    """A line where it limits something; a note where it is far above every batch."""
    loader, color, top = each.loader_samples_per_second, _color(place), axes.get_ylim()[1]
    if loader is None:
        return
    start = each.rows[0].batch
    if loader.center < top:
        axes.axhline(loader.center, color=color, linestyle=":", linewidth=1)
        axes.text(start, loader.center, "loader", color=color, va="bottom")
        return
    note = f"loader: {number(loader.center)} samples/s, above this axis"
    axes.text(start, top * (1 - _NOTE_HEIGHT * place), note, color=color, va="top")


def _color(place: int) -> str:
    return LINES[place % len(LINES)]


def _draw_memory(axes: Axes, each: Answer, color: str) -> None:
    measured = [
        (probe.batch, probe.peak_bytes.value / 1e9)
        for probe in each.configuration.probes
        if probe.fits and probe.peak_bytes.value is not None
    ]
    axes.plot(*zip(*measured, strict=True), color=color, marker="o", markersize=4, linestyle="none")
    if each.line is not None:
        batches = sorted({batch for batch, _ in measured})
        line = [each.line.predict_bytes(batch) / 1e9 for batch in batches]
        axes.plot(batches, line, color=color, linewidth=1)


PART = Part(BatchSizeRecord, "Which batch size?", page, figures)
