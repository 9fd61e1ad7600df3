"""What was tried, what did it cost, and what would others have done? The tables of the report."""

from __future__ import annotations

from diagnose.sizes import Configuration, Probe, fit_memory
from diagnose.tell import derive
from diagnose.tell.batch_size import Answer, Row
from diagnose.tell.batch_size_rivals import list_rivals
from diagnose.tell.markdown import Align, Footnotes, Markup, prose, table
from diagnose.tell.units import milliseconds, number, percent, scaled, spread

# As in the field report whose table this is.
SAMPLES = 100


def answers_table(answers: list[Answer]) -> list[str]:
    notes = Footnotes()
    rows = []
    for each in answers:
        configuration = each.configuration
        if each.largest is None:
            largest = notes.missing(configuration.reason or "nothing fits")
        elif each.is_exact:
            largest = Markup(str(each.largest))
        else:
            doubt = configuration.stopped or "the search was cut short"
            largest = notes.doubt(f"at least {each.largest}", doubt)
        knee = notes.missing(each.reason) if each.knee is None else str(each.knee)
        use = notes.missing(each.reason) if each.use is None else f"{each.use}"
        rows.append([configuration.key, largest, knee, use, each.reason])
    headers = ["configuration", "largest that fits", "smallest with ≥ 95 % of peak samples/s"]
    align: tuple[Align, ...] = ("left", "right", "right", "right", "left")
    text = table([*headers, "use", "why"], rows, align)
    return [text, *(["\n".join(notes.lines())] if notes.lines() else [])]


def sweep_table(answer: Answer) -> list[str]:
    """Batch, time, gain, utilisation, as the field reports have it, and what they leave out."""
    if not answer.rows:
        sweep = answer.configuration.sweep
        why = sweep.reason if sweep is not None else "nothing that fits was found"
        return [f"No throughput was measured: {prose(why)}"]
    notes = Footnotes()
    rows = [_sweep_row(row, answer, notes) for row in answer.rows]
    headers = [
        "batch",
        f"s for {SAMPLES} samples",
        "gain",
        "utilisation",
        Markup("step ms [95 % interval]"),
        Markup("samples/s [95 % interval]"),
        "of peak",
        "memory",
        "J/sample",
        "",
    ]
    numbers: list[Align] = ["right" for _ in headers[1:]]
    text = table(headers, rows, [*numbers, "left"])
    timed = {row.batch for row in answer.rows}
    missing = [str(each) for each in answer.configuration.asked if each not in timed]
    if missing:
        text += f"\n\nAsked for, but too large to fit: {', '.join(missing)}."
    return [text, *(["\n".join(notes.lines())] if notes.lines() else [])]


def _sweep_row(row: Row, answer: Answer, notes: Footnotes) -> list[str]:
    used = derive.utilization(row.measurement)
    joules = derive.joules_per_sample(row.measurement)
    peak = row.measurement.peak_bytes
    marks = [
        word
        for batch, word in ((answer.knee, "knee"), (answer.use, "use"), (answer.largest, "largest"))
        if batch == row.batch
    ]
    return [
        str(row.batch),
        number(SAMPLES / row.samples_per_second.center),
        f"{number(row.gain, 3)}x",
        notes.missing(used.reason) if used.value is None else percent(used.value),
        milliseconds(derive.step_seconds(row.measurement)),
        spread(row.samples_per_second),
        percent(row.of_peak.center),
        notes.missing(peak.reason) if peak.value is None else scaled(peak.value, "B"),
        notes.missing(joules.reason) if joules.value is None else number(joules.value, 3),
        ", ".join(marks),
    ]


def memory_table(configuration: Configuration) -> list[str]:
    """What the line predicts against what doubling the memory with the batch would."""
    fitting = {p.batch: p for p in configuration.probes if p.fits}
    line = fit_memory(list(fitting.values()))
    first = min(fitting, default=0)
    base = fitting[first].peak_bytes.value if first else None
    if line is None or base is None:
        return ["The memory of fewer than two batch sizes is known, so there is no line."]
    rows = []
    for batch, probe in sorted(fitting.items()):
        peak = probe.peak_bytes.value
        rows.append(
            [
                str(batch),
                "–" if peak is None else scaled(peak, "B"),
                scaled(line.predict_bytes(batch), "B"),
                scaled(base * batch / first, "B"),
            ]
        )
    largest = max(fitting)
    over = base * largest / first / line.predict_bytes(largest)
    text = (
        f"Peak = {scaled(line.fixed_bytes, 'B')} + {scaled(line.bytes_per_sample, 'B')} per "
        f"sample. Doubling the memory with the batch doubles the weights too: from batch {first} "
        f"it expects {number(over, 3)} times what batch {largest} takes."
    )
    return [table(["batch", "measured", "line", "doubling"], rows, ("right",) * 4), prose(text)]


def probes_table(configuration: Configuration) -> list[str]:
    rows = [_probe_row(probe) for probe in configuration.probes]
    headers = ["batch", "result", "peak", "free before", "fastest step ms", "probe s", "why"]
    align: tuple[Align, ...] = ("right", "left", "right", "right", "right", "right", "left")
    return [table(headers, rows, align)]


def _probe_row(probe: Probe) -> list[str]:
    peak, free = probe.peak_bytes.value, probe.available_bytes.value
    fresh = " (fresh process)" if probe.fresh else ""
    return [
        str(probe.batch),
        probe.status + fresh,
        "–" if peak is None else scaled(peak, "B"),
        "–" if free is None else scaled(free, "B"),
        number(1e3 * min(probe.step_seconds)) if probe.step_seconds else "–",
        number(probe.seconds, 3),
        probe.reason,
    ]


def estimates_table(answer: Answer) -> list[str]:
    rows = []
    for each in answer.configuration.estimates:
        span = str(each.low) if each.low == each.high else f"{each.low} to {each.high}"
        rows.append([each.source, span, _verdict(each.low, each.high, answer)])
    align: tuple[Align, ...] = ("left", "right", "left")
    return [table(["rule of thumb", "recommends", "against the largest that fits"], rows, align)]


def _verdict(low: int, high: int, answer: Answer) -> str:
    largest = answer.largest
    if largest is None:
        return "nothing fits"
    if high < largest:
        return f"too small: {number(largest / high, 3)} times as many fit"
    if not answer.is_exact:
        return f"cannot tell: at least {largest} fit"
    if low > largest:
        return f"too large: only {largest} fit"
    return "right"


def rivals_table(answer: Answer) -> list[str]:
    """The same case, searched by the usual rules; only ours is counted from real probes."""
    if answer.largest is None or not answer.is_exact:
        return ["The limit is not known exactly, so other rules cannot be compared on it."]
    confirming = 1 if answer.is_confirmed else 0
    searched = len(answer.configuration.probes) - confirming
    start = max((each.high for each in answer.configuration.estimates[:1]), default=1)
    rows = [["this search", str(searched), str(answer.largest), "–"]]
    for name, attempt in list_rivals(answer.largest, start).items():
        lost = 1 - attempt.batch / answer.largest
        rows.append([name, str(attempt.probes), str(attempt.batch), percent(lost) if lost else "–"])
    text = table(["rule", "probes", "finds", "left unused"], rows)
    return [text, f"One more probe confirms ours in a fresh process; {_bound(answer.largest)}."]


def _bound(limit: int) -> str:
    allowed = 1 + (limit * limit).bit_length()
    return f"2 + 2·log2({limit}) allows it {allowed}"
