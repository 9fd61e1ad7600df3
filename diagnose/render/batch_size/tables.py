"""What was tried, what did it cost, and what would others have done? The tables of the report."""

from __future__ import annotations

from diagnose.analyze import derive
from diagnose.analyze.batch_size.choice import Answer, Row, smallest_refused
from diagnose.analyze.batch_size.rivals import Attempt, knows_limit, list_rivals
from diagnose.analyze.units import milliseconds, number, percent, percent_interval, scaled, spread
from diagnose.records.batch_size import Configuration, Probe, fit_memory
from diagnose.records.stats import Interval
from diagnose.render.markdown import Align, Footnotes, Markup, prose, table

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
            largest = notes.doubt(f"at least {each.largest}", each.doubt)
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
        Markup("gain [95 % interval]"),
        "utilisation",
        Markup("step ms [95 % interval]"),
        Markup("samples/s [95 % interval]"),
        Markup("of peak [95 % interval]"),
        "memory",
        "J/sample",
        "",
    ]
    numbers: list[Align] = ["right" for _ in headers[1:]]
    text = table(headers, rows, [*numbers, "left"])
    lines = notes.lines()
    return [text, *(["\n".join(lines)] if lines else []), *_not_timed(answer)]


def _not_timed(answer: Answer) -> list[str]:
    """The batch sizes that the user asked for in vain: refused, or never reached."""
    timed, refused = {row.batch for row in answer.rows}, smallest_refused(answer.configuration)
    missing = [each for each in answer.configuration.asked if each not in timed]
    too_large = [str(each) for each in missing if refused is not None and each >= refused]
    untried = [str(each) for each in missing if str(each) not in too_large]
    told = []
    if too_large:
        told.append(f"Asked for, but too large to fit: {', '.join(too_large)}.")
    if untried:
        told.append(f"Asked for, but not tried: {', '.join(untried)}: {prose(answer.doubt)}.")
    return told


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
        _or_itself(row.gain, f"{spread(row.gain)}x", "1"),
        notes.missing(used.reason) if used.value is None else percent(used.value),
        milliseconds(derive.step_seconds(row.measurement)),
        spread(row.samples_per_second),
        _or_itself(row.of_peak, percent_interval(row.of_peak), "100 %"),
        notes.missing(peak.reason) if peak.value is None else scaled(peak.value, "B"),
        notes.missing(joules.reason) if joules.value is None else number(joules.value, 3),
        ", ".join(marks),
    ]


def _or_itself(ratio: Interval, text: str, itself: str) -> str:
    """What everything is compared with needs no interval."""
    return itself if ratio == Interval(1.0, 1.0, 1.0) else text


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
    limit, probes = answer.largest, answer.configuration.probes
    # A search never tries a batch twice: what is repeated only confirms.
    searched = len({probe.batch for probe in probes})
    start = max((each.high for each in answer.configuration.estimates[:1]), default=1)
    rows = [["this search", str(searched), str(limit), "–", "yes"]]
    for name, attempt in list_rivals(limit, start).items():
        lost = percent(1 - attempt.batch / limit) if attempt.batch < limit else "–"
        known = "yes" if knows_limit(name, limit, start) else "no"
        rows.append([name, str(attempt.probes), str(attempt.batch), lost, known])
    headers = ["rule", "probes", "finds", "left unused", "knows that no more fits"]
    align: tuple[Align, ...] = ("left", "right", "right", "right", "left")
    return [table(headers, rows, align), _compare(searched, len(probes), limit, start)]


def _compare(searched: int, made: int, limit: int, start: int) -> str:
    """Where a rule needs fewer probes, what it pays for that."""
    told = [
        f"{name} needs fewer probes{_price(name, attempt, limit, start)}."
        for name, attempt in list_rivals(limit, start).items()
        if attempt.probes < searched
    ]
    repeats = made - searched
    if repeats:
        one = repeats == 1
        told.append(
            f"{repeats} more {'probe repeats' if one else 'probes repeat'} what was found in a "
            "fresh process."
        )
    allowed = 1 + (limit * limit).bit_length()
    told.append(f"2 + 2·log2({limit}) allows the search {allowed}.")
    return prose(" ".join(told))


def _price(name: str, attempt: Attempt, limit: int, start: int) -> str:
    if attempt.batch < limit:
        return f", but leaves {percent(1 - attempt.batch / limit)} of the batch unused"
    if not knows_limit(name, limit, start):
        return f", but does not know whether {limit + 1} fits"
    return " and knows as much: here it is the better one"
